// Software painter: opaque squares written into an image; fast on every machine.

import { COLORS, mapWidth } from "./points.js";

function packColor(hex) {
  const value = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** @param {HTMLCanvasElement} canvas */
export function createPainter(canvas) {
  const context = canvas.getContext("2d");
  const palette = Uint32Array.from(COLORS, packColor);
  let image = null;

  /** Paint the first `count` points at `ratio` device pixels per CSS pixel. */
  function paint(cloud, viewport, { count, ratio, dim, size }) {
    const width = Math.max(1, Math.round(viewport.width * ratio));
    const height = Math.max(1, Math.round(viewport.height * ratio));
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      image = null;
    }
    image ??= context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(0);
    const scale = (mapWidth(viewport) * ratio) / 65535;
    const left = (viewport.width / 2 - viewport.x * mapWidth(viewport)) * ratio;
    const top = (viewport.height / 2 - viewport.y * mapWidth(viewport)) * ratio;
    const side = Math.max(1, Math.round(size * ratio));
    const half = side >> 1;
    const { x, y, codes, mask } = cloud;
    const gray = packColor(dim);
    let painted = 0;
    // Points outside the filter are drawn first, dimmed, so that they lie below.
    for (let pass = mask ? 0 : 1; pass < 2; pass++) {
      for (let i = 0; i < count; i++) {
        if (mask && Boolean(mask[i >> 3] & (1 << (i & 7))) !== Boolean(pass)) continue;
        const px = ((x[i] * scale + left) | 0) - half;
        const py = ((y[i] * scale + top) | 0) - half;
        if (px < 0 || py < 0 || px + side > width || py + side > height) continue;
        const code = codes[i];
        const color = pass ? palette[code < 11 ? code : 11] : gray;
        let at = py * width + px;
        for (let row = 0; row < side; row++, at += width) for (let k = 0; k < side; k++) pixels[at + k] = color;
        painted++;
      }
    }
    context.putImageData(image, 0, 0);
    return painted;
  }
  return { paint, kind: "cpu" };
}
