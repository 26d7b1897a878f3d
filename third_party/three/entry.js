// What the viewer uses of three.js; everything else is shaken off by the bundler.
export {
  ACESFilmicToneMapping, Bone, BufferAttribute, BufferGeometry, CanvasTexture, CircleGeometry, Color,
  DirectionalLight, Float32BufferAttribute, Group, HemisphereLight, InstancedMesh, Line,
  LineBasicMaterial, LineSegments, Matrix4, Mesh, MeshBasicMaterial, MeshStandardMaterial,
  NeutralToneMapping, PCFShadowMap, PCFSoftShadowMap, PerspectiveCamera, PlaneGeometry, Quaternion,
  Scene, ShaderMaterial, ShadowMaterial, Skeleton, SkinnedMesh, SphereGeometry, SRGBColorSpace,
  Vector3, VSMShadowMap, WebGLRenderer,
} from 'three';
