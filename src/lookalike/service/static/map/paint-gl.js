// Round blended points on a real graphics card. In software graphics this is the slow way: `quick` finds out.

import { COLOURS, span } from "./buffer.js";

/** @typedef {import("./buffer.js").Cloud} Cloud */

const VERTEX = `#version 300 es
in vec2 place; in uint code; in float bright;
uniform vec4 frame; uniform float size; uniform vec3 palette[12]; uniform vec3 dim; uniform float side;
out vec4 colour;
void main() {
  gl_Position = vec4(place * frame.xy + frame.zw, 0.0, 1.0);
  gl_PointSize = size;
  bool mine = (bright > 0.5) == (side > 0.5);
  if (!mine) gl_Position = vec4(9.0);
  colour = side > 0.5 ? vec4(palette[min(int(code), 11)], 0.85) : vec4(dim, 0.5);
}`;
const FRAGMENT = `#version 300 es
precision mediump float; in vec4 colour; out vec4 shade;
void main() {
  float far = length(gl_PointCoord - 0.5);
  float a = colour.a * (1.0 - smoothstep(0.38, 0.5, far));
  shade = vec4(colour.rgb * a, a);
}`;

const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);

/** @param {HTMLCanvasElement} canvas @param {Cloud} cloud @returns {any} null where it cannot be had */
export function painter(canvas, cloud) {
  const gl = canvas.getContext("webgl2", { antialias: false, failIfMajorPerformanceCaveat: true });
  if (!gl) return null;
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
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
  gl.uniform3fv(at("palette"), COLOURS.flatMap(rgb));
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);

  function paint(now, eye, { count, dim, size }) {
    const ratio = devicePixelRatio;
    const [width, height] = [Math.round(eye.width * ratio), Math.round(eye.height * ratio)];
    if (canvas.width !== width || canvas.height !== height) { canvas.width = width; canvas.height = height; }
    if (shown.x !== now.x) {
      const places = new Uint16Array(2 * now.n);
      for (let i = 0; i < now.n; i++) { places[2 * i] = now.x[i]; places[2 * i + 1] = now.y[i]; }
      fill("place", places, (place) => gl.vertexAttribPointer(place, 2, gl.UNSIGNED_SHORT, true, 0, 0));
    }
    if (shown.codes !== now.codes) fill("code", now.codes, (place) => gl.vertexAttribIPointer(place, 1, gl.UNSIGNED_SHORT, 0, 0));
    if (shown.mask !== now.mask || shown.n !== now.n) {
      const bright = Uint8Array.from({ length: now.n }, (_, i) => (!now.mask || now.mask[i >> 3] & (1 << (i & 7)) ? 255 : 0));
      fill("bright", bright, (place) => gl.vertexAttribPointer(place, 1, gl.UNSIGNED_BYTE, true, 0, 0));
    }
    shown = now;
    const [sx, sy] = [(2 * span(eye)) / eye.width, (2 * span(eye)) / eye.height];
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniform4f(at("frame"), sx, -sy, -eye.x * sx, eye.y * sy);
    gl.uniform1f(at("size"), (size + 1) * ratio);
    gl.uniform3fv(at("dim"), rgb(dim));
    for (const side of now.mask ? [0, 1] : [1]) {
      gl.uniform1f(at("side"), side);
      gl.drawArrays(gl.POINTS, 0, count);
    }
  }

  /** A frame of at most 50,000 points must be there within 20 ms. */
  function quick(eye) {
    const how = { count: Math.min(cloud.n, 50000), dim: "#888888", size: 3 };
    paint(cloud, eye, how); // the first one compiles
    const pixel = new Uint8Array(4);
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    const start = performance.now();
    paint(cloud, eye, how);
    gl.readPixels(0, 0, 1, 1, gl.RGBA, gl.UNSIGNED_BYTE, pixel);
    return performance.now() - start <= 20;
  }
  return { paint, quick, kind: "gl" };
}
