// Opaque squares written into one image: the painter that is quick on every machine.

import { COLORS, span } from "./buffer.js";

function packed(hex) {
  const value = parseInt(hex.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

/** @param {HTMLCanvasElement} canvas */
export function painter(canvas) {
  const context = canvas.getContext("2d");
  const palette = Uint32Array.from(COLORS, packed);
  let image = null;

  /** The first `count` points, `ratio` pixels a CSS pixel. */
  function paint(cloud, eye, { count, ratio, dim, size }) {
    const width = Math.max(1, Math.round(eye.width * ratio));
    const height = Math.max(1, Math.round(eye.height * ratio));
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
      image = null;
    }
    image ??= context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    pixels.fill(0);
    const scale = (span(eye) * ratio) / 65535;
    const left = (eye.width / 2 - eye.x * span(eye)) * ratio;
    const top = (eye.height / 2 - eye.y * span(eye)) * ratio;
    const side = Math.max(1, Math.round(size * ratio));
    const half = side >> 1;
    const { x, y, codes, mask } = cloud;
    const gray = packed(dim);
    let painted = 0;
    // With a filter the others are drawn first, dim, so below.
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
