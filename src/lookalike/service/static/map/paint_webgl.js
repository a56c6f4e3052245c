// WebGL painter: round blended points on a graphics card. Slow in software rendering, which `isFast` detects.

import { COLORS, mapWidth } from "./points.js";

const VERTEX = `#version 300 es
in vec2 place; in uint code; in float bright;
uniform vec4 frame; uniform float size; uniform vec3 palette[12]; uniform vec3 dim; uniform float side;
out vec4 color;
void main() {
  gl_Position = vec4(place * frame.xy + frame.zw, 0.0, 1.0);
  gl_PointSize = size;
  bool mine = (bright > 0.5) == (side > 0.5);
  if (!mine) gl_Position = vec4(9.0);
  color = side > 0.5 ? vec4(palette[min(int(code), 11)], 0.85) : vec4(dim, 0.5);
}`;
const FRAGMENT = `#version 300 es
precision mediump float; in vec4 color; out vec4 shade;
void main() {
  float far = length(gl_PointCoord - 0.5);
  float a = color.a * (1.0 - smoothstep(0.38, 0.5, far));
  shade = vec4(color.rgb * a, a);
}`;

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);

/** @param {HTMLCanvasElement} canvas @returns {any} null where WebGL is not available */
export function createPainter(canvas, cloud) {
  const gl = canvas.getContext("webgl2", { antialias: false, failIfMajorPerformanceCaveat: true });
  if (!gl) return null;
  const program = gl.createProgram();
  for (const [kind, source] of [
    [gl.VERTEX_SHADER, VERTEX],
    [gl.FRAGMENT_SHADER, FRAGMENT],
  ]) {
    const shader = gl.createShader(Number(kind));
    gl.shaderSource(shader, String(source));
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return null;
  gl.useProgram(program);
  const at = (name) => gl.getUniformLocation(program, name);
  const buffers = {};
  const fill = (name, data, shape) => {
    const place = gl.getAttribLocation(program, name);
    buffers[name] ??= gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffers[name]);
    gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(place);
    shape(place);
  };
  let shown = {};
  gl.uniform3fv(at("palette"), COLORS.flatMap(rgb));
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);

  function paint(now, viewport, { count, dim, size }) {
    const ratio = devicePixelRatio;
    const [width, height] = [Math.round(viewport.width * ratio), Math.round(viewport.height * ratio)];
    if (canvas.width !== width || canvas.height !== height) {
      canvas.width = width;
      canvas.height = height;
    }
    if (shown.x !== now.x) {
      const places = new Uint16Array(2 * now.n);
      for (let i = 0; i < now.n; i++) {
        places[2 * i] = now.x[i];
        places[2 * i + 1] = now.y[i];
      }
      fill("place", places, (place) => gl.vertexAttribPointer(place, 2, gl.UNSIGNED_SHORT, true, 0, 0));
    }
    if (shown.codes !== now.codes)
      fill("code", now.codes, (place) => gl.vertexAttribIPointer(place, 1, gl.UNSIGNED_SHORT, 0, 0));
    if (shown.mask !== now.mask || shown.n !== now.n) {
      const bright = new Uint8Array(now.n).fill(255);
      for (let i = 0; now.mask && i < now.n; i++) if (!(now.mask[i >> 3] & (1 << (i & 7)))) bright[i] = 0;
      fill("bright", bright, (place) => gl.vertexAttribPointer(place, 1, gl.UNSIGNED_BYTE, true, 0, 0));
    }
    shown = now;
    const [sx, sy] = [(2 * mapWidth(viewport)) / viewport.width, (2 * mapWidth(viewport)) / viewport.height];
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform4f(at("frame"), sx, -sy, -viewport.x * sx, viewport.y * sy);
    gl.uniform1f(at("size"), (size + 1) * ratio);
    gl.uniform3fv(at("dim"), rgb(dim));
    for (const side of now.mask ? [0, 1] : [1]) {
      gl.uniform1f(at("side"), side);
      gl.drawArrays(gl.POINTS, 0, count);
    }
  }

  /** Whether 50,000 points are painted within 20 ms; slow cards are detected with fewer points first. */
  async function isFast(viewport) {
    for (const [most, ms] of [
      [1, Infinity],
      [5000, 5],
      [50000, 20],
    ]) {
      // the first round compiles the shaders
      await new Promise((next) => setTimeout(next));
      const n = Math.min(cloud.n, most);
      const [x, y, codes] = [cloud.x, cloud.y, cloud.codes].map((column) => column.subarray(0, n));
      const began = performance.now();
      paint({ ...cloud, n, x, y, codes }, viewport, { count: n, dim: "#888888", size: 3 });
      gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, new Uint8Array(4));
      if (performance.now() - began > ms) return false;
    }
    return true;
  }
  return { paint, quick: isFast, kind: "gl" };
}
