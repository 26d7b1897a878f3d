// What the viewer uses of three.js; everything else is shaken off by the bundler.
export {
  Bone, BufferAttribute, BufferGeometry, CircleGeometry, Color, DirectionalLight,
  Float32BufferAttribute, Group, HemisphereLight, InstancedMesh, Line, LineBasicMaterial, Matrix4,
  Mesh, MeshStandardMaterial, NeutralToneMapping, PCFShadowMap, PerspectiveCamera, PlaneGeometry,
  Quaternion, Scene, ShaderMaterial, ShadowMaterial, Skeleton, SkinnedMesh, SphereGeometry, Vector3,
  WebGLRenderer,
} from 'three';
