// The stage: one WebGL scene that draws any clip at any moment into a card's own canvas.
// Knows three.js, figures and cameras. Does not know the page's buttons or layout.
'use strict';

const HyMotionStage = (() => {
  const TONES = {
    light: ['#ece8e0', '#4a5163', '#20252f', '#6f9fe0', '#eb9a66'],
    dark: ['#d9d6d0', '#3b4252', '#11151c', '#6c9be6', '#e8935c'],
  };
  const SUN = new THREE.Vector3(2.2, 4.2, 2.4);
  const FIELD_OF_VIEW = 28;
  const SMOOTH_SECONDS = 0.35;

  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const decode = (text, Type) => new Type(bytes(text).buffer);

  // --- figures and clips out of the page's data ---------------------------------------------------

  function readFigure(data, parents) {
    const vertices = decode(data.vertices, Int16Array);
    const position = Float32Array.from(vertices, (v) => v * data.unit);
    const faces = decode(data.faces, position.length / 3 > 65535 ? Uint32Array : Uint16Array);
    const weights = Float32Array.from(decode(data.skin_weights, Uint8Array));
    for (let i = 0; i < weights.length; i += 4) {
      const sum = weights[i] + weights[i + 1] + weights[i + 2] + weights[i + 3];
      for (let k = 0; k < 4; k++) weights[i + k] /= sum;
    }
    const geometry = new THREE.BufferGeometry();
    geometry.setIndex(new THREE.BufferAttribute(faces, 1));
    geometry.setAttribute('position', new THREE.BufferAttribute(position, 3));
    geometry.setAttribute('skinIndex', new THREE.BufferAttribute(decode(data.skin_indices, Uint8Array), 4));
    geometry.setAttribute('skinWeight', new THREE.BufferAttribute(weights, 4));
    geometry.computeVertexNormals();
    geometry.computeBoundingBox();
    const box = geometry.boundingBox;
    return {
      geometry, parents, rest: decode(data.rest, Float32Array), tones: decode(data.tones, Uint8Array),
      height: box.max.y - box.min.y,
    };
  }

  function readClip(data, figures) {
    const quats = Float32Array.from(decode(data.quats, Int16Array), (q) => q / 32767);
    const clip = {
      ...data, figure: figures[data.figure], quats, root: decode(data.root, Float32Array),
      duration: (data.num_frames - 1) / data.fps, object: null,
    };
    clip.centre = smoothed(clip.root, data.num_frames, Math.round(SMOOTH_SECONDS * data.fps));
    clip.reach = reach(clip.root);
    return clip;
  }

  // Moving average of the pelvis, twice, so that the camera glides.
  function smoothed(root, numFrames, radius) {
    let values = root;
    for (let pass = 0; pass < 2; pass++) {
      const next = new Float32Array(values.length);
      for (let i = 0; i < numFrames; i++) {
        for (let axis = 0; axis < 3; axis++) {
          let sum = 0;
          for (let k = -radius; k <= radius; k++) sum += values[3 * Math.min(Math.max(i + k, 0), numFrames - 1) + axis];
          next[3 * i + axis] = sum / (2 * radius + 1);
        }
      }
      values = next;
    }
    return values;
  }

  function reach(root) {
    const low = [Infinity, Infinity, Infinity], high = [-Infinity, -Infinity, -Infinity];
    root.forEach((value, i) => {
      low[i % 3] = Math.min(low[i % 3], value);
      high[i % 3] = Math.max(high[i % 3], value);
    });
    return { middle: low.map((v, i) => (v + high[i]) / 2), half: Math.hypot(high[0] - low[0], high[2] - low[2]) / 2 };
  }

  // --- objects ------------------------------------------------------------------------------------

  function makeObject(clip, materials) {
    const { figure } = clip;
    const bones = Array.from({ length: figure.parents.length }, () => new THREE.Bone());
    const at = (j) => new THREE.Vector3().fromArray(figure.rest, 3 * j);
    bones.forEach((bone, j) => {
      const parent = figure.parents[j];
      bone.position.copy(parent < 0 ? at(j) : at(j).sub(at(parent)));
      if (parent >= 0) bones[parent].add(bone);
    });
    const group = new THREE.Group();
    const mesh = new THREE.SkinnedMesh(figure.geometry, materials.body);
    mesh.frustumCulled = false;
    mesh.castShadow = mesh.receiveShadow = true;
    group.add(bones[0], mesh);
    group.updateMatrixWorld(true);
    mesh.bind(new THREE.Skeleton(bones));
    const sticks = new THREE.InstancedMesh(stickGeometry(), materials.stick, bones.length - 1);
    const knots = new THREE.InstancedMesh(new THREE.SphereGeometry(0.022, 14, 10), materials.knot, bones.length);
    for (const part of [sticks, knots]) {
      part.frustumCulled = false;
      part.castShadow = true;
      group.add(part);
    }
    const path = new THREE.Line(new THREE.BufferGeometry(), materials.path);
    const ground = clip.root.map((value, i) => (i % 3 === 1 ? 0.006 : value));
    path.geometry.setAttribute('position', new THREE.BufferAttribute(ground, 3));
    path.frustumCulled = false;
    group.add(path);
    return { group, mesh, bones, sticks, knots, path };
  }

  // A slim octahedron from (0,0,0) to (0,1,0), thickest near its start, as animation tools draw bones.
  function stickGeometry() {
    const w = 0.1;
    const ring = [[w, 0.14, 0], [0, 0.14, w], [-w, 0.14, 0], [0, 0.14, -w]];
    const corners = [];
    for (let k = 0; k < 4; k++) {
      const a = ring[k], b = ring[(k + 1) % 4];
      corners.push(...[0, 0, 0], ...a, ...b, ...[0, 1, 0], ...b, ...a);
    }
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute('position', new THREE.Float32BufferAttribute(corners, 3));
    geometry.computeVertexNormals();
    return geometry;
  }

  const qa = new THREE.Quaternion(), qb = new THREE.Quaternion();
  const va = new THREE.Vector3(), vb = new THREE.Vector3(), up = new THREE.Vector3(0, 1, 0);
  const one = new THREE.Vector3(1, 1, 1), matrix = new THREE.Matrix4();

  function pose(clip, time) {
    const { bones, sticks, knots } = clip.object;
    const frame = Math.min(Math.max(time * clip.fps, 0), clip.num_frames - 1);
    const i = Math.min(Math.floor(frame), Math.max(clip.num_frames - 2, 0));
    const next = Math.min(i + 1, clip.num_frames - 1), share = frame - i;
    bones[0].position.fromArray(clip.root, 3 * i).lerp(va.fromArray(clip.root, 3 * next), share);
    bones.forEach((bone, j) => {
      qa.fromArray(clip.quats, 4 * (i * bones.length + j)).normalize();
      qb.fromArray(clip.quats, 4 * (next * bones.length + j)).normalize();
      bone.quaternion.copy(qa.slerp(qb, share));
    });
    bones[0].updateMatrixWorld(true);
    bones.forEach((bone, j) => {
      vb.setFromMatrixPosition(bone.matrixWorld);
      knots.setMatrixAt(j, matrix.compose(vb, qa.identity(), one));
      if (j === 0) return;
      va.setFromMatrixPosition(bones[clip.figure.parents[j]].matrixWorld);
      const length = vb.sub(va).length();
      const thick = Math.min(length, 0.34);
      qa.setFromUnitVectors(up, vb.divideScalar(length || 1));
      sticks.setMatrixAt(j - 1, matrix.compose(va, qa, vb.set(thick, length, thick)));
    });
    knots.instanceMatrix.needsUpdate = sticks.instanceMatrix.needsUpdate = true;
  }

  function gridMaterial() {
    return new THREE.ShaderMaterial({
      transparent: true, depthWrite: false,
      uniforms: { ink: { value: new THREE.Color() }, centre: { value: new THREE.Vector3() }, reach: { value: 5 }, strength: { value: 1 } },
      vertexShader: 'varying vec3 p; void main() { vec4 w = modelMatrix * vec4(position, 1.0); p = w.xyz; gl_Position = projectionMatrix * viewMatrix * w; }',
      fragmentShader: `
        uniform vec3 ink, centre; uniform float reach, strength; varying vec3 p;
        float lines(float every, float width) {
          vec2 c = p.xz / every, w = fwidth(c) * width;
          vec2 d = abs(fract(c - 0.5) - 0.5);
          vec2 l = (1.0 - smoothstep(w * 0.5, w * 1.5, d)) * clamp(0.5 / max(w, vec2(1e-4)), 0.0, 1.0);
          return max(l.x, l.y);
        }
        void main() {
          float fade = 1.0 - smoothstep(0.25, 1.0, length(p.xz - centre.xz) / reach);
          gl_FragColor = vec4(ink, strength * fade * max(lines(1.0, 0.7) * 0.9, lines(0.5, 0.55) * 0.4));
          #include <colorspace_fragment>
        }`,
    });
  }

  // --- the stage ----------------------------------------------------------------------------------

  function create() {
    const renderer = new THREE.WebGLRenderer({ antialias: true, alpha: true, powerPreference: 'high-performance' });
    renderer.setPixelRatio(1);
    renderer.setClearAlpha(0);
    renderer.setScissorTest(true);
    renderer.shadowMap.enabled = true;
    renderer.shadowMap.type = THREE.PCFShadowMap;
    renderer.toneMapping = THREE.NeutralToneMapping;

    const scene = new THREE.Scene();
    const sky = new THREE.HemisphereLight('#ffffff', '#c9c2b8', 1.25);
    const sun = new THREE.DirectionalLight('#fff6ea', 2.5);
    const rim = new THREE.DirectionalLight('#b9d0ff', 0.9);
    sun.castShadow = true;
    sun.shadow.mapSize.set(1024, 1024);
    sun.shadow.radius = 7;
    sun.shadow.bias = -0.0004;
    sun.shadow.normalBias = 0.03;
    Object.assign(sun.shadow.camera, { left: -1.7, right: 1.7, top: 1.7, bottom: -1.7, near: 0.5, far: 14 });
    const floor = new THREE.Mesh(new THREE.CircleGeometry(14, 48), new THREE.ShadowMaterial({ opacity: 0.2 }));
    const grid = new THREE.Mesh(new THREE.PlaneGeometry(24, 24), gridMaterial());
    for (const flat of [floor, grid]) flat.rotation.x = -Math.PI / 2;
    floor.receiveShadow = true;
    grid.position.y = -0.002;
    grid.renderOrder = -1;
    scene.add(sky, sun, sun.target, rim, rim.target, floor, grid);

    const materials = {
      body: new THREE.MeshStandardMaterial({ vertexColors: true, roughness: 0.58, metalness: 0 }),
      stick: new THREE.MeshStandardMaterial({ roughness: 0.5, flatShading: true }),
      knot: new THREE.MeshStandardMaterial({ roughness: 0.4 }),
      path: new THREE.LineBasicMaterial({ transparent: true, opacity: 0.75 }),
    };
    const camera = new THREE.PerspectiveCamera(FIELD_OF_VIEW, 1, 0.1, 60);
    const target = new THREE.Vector3();
    const painted = new Map(); // figure -> theme whose colours its geometry has
    let theme = 'light';

    function setTheme(name) {
      theme = name;
      const dark = name === 'dark';
      grid.material.uniforms.ink.value.set(dark ? '#8fa0c0' : '#6b7a96');
      grid.material.uniforms.strength.value = dark ? 0.34 : 0.4;
      floor.material.opacity = dark ? 0.5 : 0.24;
      sky.intensity = dark ? 0.95 : 1.3;
      sky.groundColor.set(dark ? '#39414f' : '#cfc8bd');
      materials.stick.color.set(dark ? '#8fb0ff' : '#3b6ef0');
      materials.knot.color.set(dark ? '#dfe7ff' : '#1d3fa8');
      materials.path.color.set(dark ? '#7ba2ff' : '#3b6ef0');
    }

    function paintFigure(figure) {
      if (painted.get(figure) === theme) return;
      const palette = TONES[theme].map((hex) => new THREE.Color(hex));
      const colours = new Float32Array(3 * figure.tones.length);
      figure.tones.forEach((tone, i) => palette[tone].toArray(colours, 3 * i));
      figure.geometry.setAttribute('color', new THREE.BufferAttribute(colours, 3));
      painted.set(figure, theme);
    }

    function aim(clip, time, view, aspect) {
      const size = clip.figure.height / 1.75;
      const frame = Math.min(Math.max(time * clip.fps, 0), clip.num_frames - 1);
      const i = Math.min(Math.floor(frame), Math.max(clip.num_frames - 2, 0));
      const next = Math.min(i + 1, clip.num_frames - 1);
      let distance = 5.2 * size;
      if (view.follow) {
        target.fromArray(clip.centre, 3 * i).lerp(va.fromArray(clip.centre, 3 * next), frame - i);
      } else {
        target.fromArray(clip.reach.middle);
        distance += clip.reach.half * 2.1;
      }
      const tracked = target.clone();
      target.y = 0.5 * size + 0.46 * target.y;
      distance *= view.zoom * Math.max(1, 0.92 / aspect);
      const flat = Math.cos(view.elevation) * distance;
      camera.position.set(
        target.x + Math.sin(view.azimuth) * flat,
        Math.max(target.y + Math.sin(view.elevation) * distance, 0.05),
        target.z + Math.cos(view.azimuth) * flat,
      );
      camera.aspect = aspect;
      camera.far = distance + 40;
      camera.updateProjectionMatrix();
      camera.lookAt(target);
      grid.material.uniforms.reach.value = Math.max(4.5, 0.85 * distance);
      grid.material.uniforms.centre.value.copy(target);
      for (const flatMesh of [floor, grid]) flatMesh.position.set(target.x, flatMesh.position.y, target.z);
      return tracked;
    }

    function light(clip) {
      va.setFromMatrixPosition(clip.object.bones[0].matrixWorld);
      sun.target.position.set(va.x, 0.55 * va.y, va.z);
      sun.position.copy(sun.target.position).add(SUN);
      rim.target.position.copy(sun.target.position);
      rim.position.copy(camera.position).sub(target).multiplyScalar(-1).setY(2.2).add(target);
    }

    // Draw `clip` at `time` seconds into the 2D context of a canvas, in the canvas's own pixels.
    function draw(clip, time, view, context) {
      const { width, height } = context.canvas;
      const drawing = renderer.domElement;
      if (drawing.width < width || drawing.height < height) {
        renderer.setSize(Math.max(drawing.width, width), Math.max(drawing.height, height), false);
      }
      renderer.setViewport(0, 0, width, height);
      renderer.setScissor(0, 0, width, height);
      clip.object ??= makeObject(clip, materials);
      paintFigure(clip.figure);
      pose(clip, time);
      aim(clip, time, view, width / height);
      light(clip);
      const { group, mesh, sticks, knots, path } = clip.object;
      mesh.visible = view.show !== 'skeleton';
      sticks.visible = knots.visible = view.show !== 'body';
      const glass = view.show === 'both';
      if (materials.body.transparent !== glass) materials.body.needsUpdate = true;
      Object.assign(materials.body, { transparent: glass, opacity: glass ? 0.34 : 1, depthWrite: !glass });
      path.visible = view.grid && clip.reach.half > 0.15;
      grid.visible = view.grid;
      scene.add(group);
      renderer.render(scene, camera);
      scene.remove(group);
      context.clearRect(0, 0, width, height);
      context.drawImage(drawing, 0, drawing.height - height, width, height, 0, 0, width, height);
    }

    setTheme(theme);
    return { draw, setTheme, canvas: renderer.domElement };
  }

  const joints = (clip) => clip.object.bones.map((bone) => va.setFromMatrixPosition(bone.matrixWorld).toArray());

  return { create, readFigure, readClip, joints };
})();
