// Which point is meant: a counting sort into 256 × 256 cells, then a look around the pointer.

import { span, toMap } from "./buffer.js";

const SIDE = 256;

export function sorted(cloud) {
  const starts = new Uint32Array(SIDE * SIDE + 1);
  const cell = (i) => (cloud.y[i] >> 8) * SIDE + (cloud.x[i] >> 8);
  for (let i = 0; i < cloud.n; i++) starts[cell(i) + 1]++;
  for (let c = 0; c < SIDE * SIDE; c++) starts[c + 1] += starts[c];
  const next = starts.slice(0, -1);
  const order = new Uint32Array(cloud.n);
  for (let i = 0; i < cloud.n; i++) order[next[cell(i)]++] = i;
  return { starts, order };
}

/** Points within some pixels of a place, the nearest first. */
export function near(cloud, index, eye, px, py, radius) {
  const [mx, my] = toMap(eye, px, py);
  const reach = radius / span(eye);
  const clamp = (v) => Math.min(Math.max(Math.floor(v * SIDE), 0), SIDE - 1);
  const found = [];
  for (let row = clamp(my - reach); row <= clamp(my + reach); row++) {
    for (let k = index.starts[row * SIDE + clamp(mx - reach)]; k < index.starts[row * SIDE + clamp(mx + reach) + 1]; k++) {
      const i = index.order[k];
      const far = Math.hypot(cloud.x[i] / 65535 - mx, cloud.y[i] / 65535 - my);
      if (far <= reach) found.push({ i, far });
    }
  }
  return found.sort((a, b) => a.far - b.far).map(({ i }) => i);
}

/** So many points, the nearest to the middle first; those of the whole are not sorted for it. */
export function middle(cloud, index, eye, most) {
  let found = [];
  for (let radius = 60; found.length < most && radius < 2 * Math.max(eye.width, eye.height); radius *= 2) {
    found = near(cloud, index, eye, eye.width / 2, eye.height / 2, radius);
  }
  return found.slice(0, most);
}

export const pick = (cloud, index, eye, px, py, radius = 14) => near(cloud, index, eye, px, py, radius)[0] ?? -1;

/** Points inside a drawn line. @param {number[][]} line corners from 0 to 1 */
export function inside(cloud, line) {
  let count = 0;
  for (let i = 0; i < cloud.n; i++) {
    const [x, y] = [cloud.x[i] / 65535, cloud.y[i] / 65535];
    let odd = false;
    for (let a = 0, b = line.length - 1; a < line.length; b = a++) {
      const [[x1, y1], [x2, y2]] = [line[a], line[b]];
      if (y1 > y !== y2 > y && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) odd = !odd;
    }
    if (odd) count++;
  }
  return count;
}
