// Reads glTF and GLB files with Khronos's validator and with three.js, and prints JSON.
//   node read_gltf.mjs validate FILE          -> the validator's report
//   node read_gltf.mjs joints FILE [T ...]    -> {name: [[x, y, z], ...]} in world axes, at seconds T
import { readFileSync } from 'node:fs';
import { AnimationMixer, Vector3 } from 'three';
import { GLTFLoader } from 'three/addons/loaders/GLTFLoader.js';
import validator from 'gltf-validator';

const [verb, file, ...rest] = process.argv.slice(2);
const bytes = new Uint8Array(readFileSync(file));

async function joints(times) {
  globalThis.self = globalThis; // three's loader looks for a browser's global
  const gltf = await new GLTFLoader().parseAsync(bytes.buffer, '');
  const mixer = new AnimationMixer(gltf.scene);
  const action = mixer.clipAction(gltf.animations[0]);
  action.clampWhenFinished = true;
  action.setLoop(2200, 1); // LoopOnce
  action.play();
  const bones = [];
  gltf.scene.traverse((node) => node.isBone && bones.push(node));
  const result = Object.fromEntries(bones.map((bone) => [bone.name, []]));
  for (const t of times) {
    mixer.setTime(t);
    gltf.scene.updateMatrixWorld(true);
    for (const bone of bones) result[bone.name].push(bone.getWorldPosition(new Vector3()).toArray());
  }
  return { joints: result, duration: gltf.animations[0].duration, tracks: gltf.animations[0].tracks.length };
}

const report = verb === 'validate' ? await validator.validateBytes(bytes) : await joints(rest.map(Number));
process.stdout.write(JSON.stringify(report));
