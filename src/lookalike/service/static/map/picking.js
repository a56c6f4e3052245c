// Find the point under the pointer: counting sort into 256 × 256 cells, then a search around the pointer.

import { mapWidth, toMap } from "./points.js";

const SIDE = 256;

export function buildGrid(cloud) {
  const starts = new Uint32Array(SIDE * SIDE + 1);
  const cell = (i) => (cloud.y[i] >> 8) * SIDE + (cloud.x[i] >> 8);
  for (let i = 0; i < cloud.n; i++) starts[cell(i) + 1]++;
  for (let c = 0; c < SIDE * SIDE; c++) starts[c + 1] += starts[c];
  const next = starts.slice(0, -1);
  const order = new Uint32Array(cloud.n);
  for (let i = 0; i < cloud.n; i++) order[next[cell(i)]++] = i;
  return { starts, order };
}

/** Points within a radius in pixels, the nearest first. */
export function pointsNear(cloud, index, viewport, px, py, radius) {
  const [mx, my] = toMap(viewport, px, py);
  const reach = radius / mapWidth(viewport);
  const clamp = (v) => Math.min(Math.max(Math.floor(v * SIDE), 0), SIDE - 1);
  const points = [];
  for (let row = clamp(my - reach); row <= clamp(my + reach); row++) {
    for (
      let k = index.starts[row * SIDE + clamp(mx - reach)];
      k < index.starts[row * SIDE + clamp(mx + reach) + 1];
      k++
    ) {
      const i = index.order[k];
      const distance = Math.hypot(cloud.x[i] / 65535 - mx, cloud.y[i] / 65535 - my);
      if (distance <= reach) points.push({ i, distance });
    }
  }
  return points.sort((a, b) => a.distance - b.distance).map(({ i }) => i);
}

/** At most `most` points, the nearest to the center first, without sorting all of them. */
export function pointsNearCenter(cloud, index, viewport, most) {
  let points = [];
  for (let radius = 60; points.length < most && radius < 2 * Math.max(viewport.width, viewport.height); radius *= 2) {
    points = pointsNear(cloud, index, viewport, viewport.width / 2, viewport.height / 2, radius);
  }
  return points.slice(0, most);
}

export const pickPoint = (cloud, index, viewport, px, py, radius = 14) =>
  pointsNear(cloud, index, viewport, px, py, radius)[0] ?? -1;

/** Number of points inside a polygon. @param {number[][]} line corners from 0 to 1 */
export function countInside(cloud, line) {
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
