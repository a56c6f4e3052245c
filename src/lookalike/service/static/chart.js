// Line charts as SVG, with the values in a collapsible table.

import { formatNumber, h, table, withMinus } from "./dom.js";

const SPACE = "http://www.w3.org/2000/svg";

function svgElement(tag, props, ...children) {
  const node = document.createElementNS(SPACE, tag);
  for (const [name, value] of Object.entries(props)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Round tick values for an axis. @param {number} low @param {number} high @param {number} number */
export function ticks(low, high, number = 4) {
  const rough = (high - low) / number || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((m) => m >= rough) ?? 10 * power;
  const out = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) out.push(Number(at.toPrecision(6)));
  return out;
}

/** A small curve without axes. @param {number[]} values */
export function sparkline(values) {
  const svg = svgElement("svg", {
    viewBox: "0 0 100 28",
    class: "spark",
    preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  if (values.length > 1) {
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const points = values.map(
      (v, k) =>
        `${((100 * k) / (values.length - 1)).toFixed(1)},${(26 - (24 * (v - low)) / (high - low || 1)).toFixed(1)}`,
    );
    svg.append(svgElement("polyline", { points: points.join(" "), class: "line" }));
  }
  return svg;
}

/**
 * @typedef {{name: string, x: number[], y: number[]}} Series
 * @param {{title: string, series: Series[], levels?: {name: string, value: number}[]}} options
 */
export function lineChart({ title, series, levels = [] }) {
  const [width, height, left, bottom] = [640, 240, 48, 28];
  const xs = series.flatMap((one) => one.x);
  const ys = [...series.flatMap((one) => one.y), ...levels.map((level) => level.value)].filter(Number.isFinite);
  if (!ys.length) return h("p.empty", "Nothing has been logged yet.");
  const [x0, x1] = [Math.min(...xs, 0), Math.max(...xs, 1)];
  const pad = (Math.max(...ys) - Math.min(...ys)) * 0.06 || Math.abs(ys[0]) * 0.05 || 0.05;
  const [y0, y1] = [Math.min(...ys) - pad, Math.max(...ys) + pad];
  const px = (x) => left + ((width - left - 12) * (x - x0)) / (x1 - x0 || 1);
  const py = (y) => 8 + (height - bottom - 8) * (1 - (y - y0) / (y1 - y0));
  const svg = svgElement("svg", {
    viewBox: `0 0 ${width} ${height}`,
    class: "chart",
    role: "img",
    "aria-label": title,
  });
  for (const y of ticks(y0, y1)) {
    svg.append(
      svgElement("line", { x1: left, x2: width - 12, y1: py(y), y2: py(y), class: "rule" }),
      svgElement("text", { x: left - 6, y: py(y) + 4, class: "tick end" }, withMinus(y)),
    );
  }
  for (const x of ticks(x0, x1, 6))
    svg.append(svgElement("text", { x: px(x), y: height - 8, class: "tick mid" }, formatNumber(x)));
  for (const level of levels)
    svg.append(
      svgElement("line", { x1: left, x2: width - 12, y1: py(level.value), y2: py(level.value), class: "level" }),
      svgElement("text", { x: width - 14, y: py(level.value) - 5, class: "tick end" }, level.name),
    );
  series.forEach((one, k) => {
    const points = one.x.map((x, at) => [x, one.y[at]]).filter(([, y]) => Number.isFinite(y));
    svg.append(
      svgElement("polyline", {
        points: points.map(([x, y]) => `${px(x).toFixed(1)},${py(y).toFixed(1)}`).join(" "),
        class: `line c${k % 4}`,
      }),
    );
    const [last] = points.slice(-1);
    if (last) svg.append(svgElement("circle", { cx: px(last[0]), cy: py(last[1]), r: 3.5, class: `tip c${k % 4}` }));
  });
  const rows = series[0].x.map((x, at) => [
    String(x),
    ...series.map((one) => withMinus(one.y[at]?.toPrecision(4) ?? "")),
  ]);
  return h(
    "figure.charted",
    h(
      "figcaption",
      h("strong", title),
      series.length > 1 ? series.map((one, k) => h("span", { class: `key c${k % 4}` }, one.name)) : null,
    ),
    svg,
    h(
      "details",
      h("summary", "Numbers"),
      table(`Numbers of ${title}`, ["step", ...series.map((one) => one.name)], rows),
    ),
  );
}
