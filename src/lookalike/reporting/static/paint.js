// Points painted by the processor into one ImageData: opaque squares, no blending, no graphics card.

/** Little-endian u16 values out of base64. @returns {Uint16Array} */
export function unpack(text) {
  return new Uint16Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
}

/** `#rrggbb` as the 32 bits an ImageData holds. */
export function pixel(color) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(color.slice(i, i + 2), 16));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/**
 * Paint points into a canvas.
 * @param {CanvasRenderingContext2D} context
 * @param {Uint16Array} places x and y in turn, 0 to 65535 across the canvas
 * @param {Uint32Array} colors one pixel value a point; 0 leaves the point out
 * @param {number} size side of a square in pixels
 * @param {number} shrink a divisor of the side for points whose color is `dim`
 */
export function paint(context, places, colors, size, dim = -1, shrink = 1) {
  const { width, height } = context.canvas;
  const image = context.createImageData(width, height);
  const out = new Uint32Array(image.data.buffer);
  for (const pass of [0, 1]) {
    for (let i = 0; i < colors.length; i++) {
      const color = colors[i];
      if (!color || (color === dim) !== (pass === 0)) continue;
      const side = pass === 0 ? Math.max(1, Math.round(size / shrink)) : size;
      const half = side >> 1;
      const left = Math.min(Math.max(0, Math.round((places[2 * i] * (width - 1)) / 65535) - half), width - side);
      const top = Math.min(Math.max(0, Math.round((places[2 * i + 1] * (height - 1)) / 65535) - half), height - side);
      for (let y = top; y < top + side; y++) out.fill(color, y * width + left, y * width + left + side);
    }
  }
  context.putImageData(image, 0, 0);
}

/**
 * The point nearest to a place (0 to 65535), or −1 if none is within `reach` of it. Fine up to 50,000 points.
 * @param {number} aspect height over width of the canvas: what a step down is worth in steps across
 */
export function nearest(places, x, y, reach, aspect = 1) {
  let best = -1,
    least = reach * reach;
  for (let i = 0; i < places.length; i += 2) {
    const dx = places[i] - x,
      dy = (places[i + 1] - y) * aspect,
      square = dx * dx + dy * dy;
    if (square < least) {
      least = square;
      best = i >> 1;
    }
  }
  return best;
}
