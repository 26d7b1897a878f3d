// Bundles the parts of three.js that the viewer uses into one script, its licence in full on top.
import { copyFileSync, readFileSync } from 'node:fs';
import { build } from 'esbuild';

const assets = '../../hymotion_ray/assets/viewer';
const { version } = JSON.parse(readFileSync('node_modules/three/package.json', 'utf8'));
const licence = readFileSync('node_modules/three/LICENSE', 'utf8').trim();
await build({
  entryPoints: ['entry.js'],
  bundle: true,
  minify: true,
  format: 'iife',
  globalName: 'THREE',
  target: 'es2020',
  legalComments: 'none',
  banner: { js: `/*! three.js ${version}\n\n${licence}\n*/` },
  outfile: `${assets}/three.bundle.min.js`,
});
copyFileSync('node_modules/three/LICENSE', `${assets}/three.LICENSE.txt`);
copyFileSync('node_modules/three/LICENSE', 'LICENSE');
