// Confidence of a hit, in words and as a bar; never by color alone.

import { decimal, fileName, h, joinText, readableLabel } from "../dom.js";
import { preference } from "../store.js";

export const GROUPS = [
  ["likely", "Very likely the same"],
  ["possibly", "Possibly"],
  ["similar", "Similar look only"],
];

/** Caption of an image. */
export function caption(hit) {
  const file = fileName(hit.columns.path ?? hit.id);
  const name =
    { file, date: joinText(hit.columns.date) || file, label: readableLabel(hit.columns.label) || file }[
      preference("caption")
    ] ?? file;
  const sure = hit.identical ? "Identical file" : hit.sureness;
  const probability = hit.probability ?? hit.closer_than;
  return [
    probability === null || probability === undefined
      ? null
      : h("div.meter", { "aria-hidden": "true" }, h("i", { "--p": probability.toFixed(3) })),
    h("div.caption", h("b", sure ?? ""), h("bdi", { title: hit.columns.path }, name)),
  ];
}

/** Explanation of a score, for the opened image. */
export function explainScore(hit) {
  if (hit.identical) return "The same file, byte for byte.";
  const similarity = `Similarity ${decimal(hit.score, 2)}.`;
  if (hit.probability === null || hit.probability === undefined) {
    if (hit.closer_than === null || hit.closer_than === undefined) return similarity;
    return `Closer than ${(100 * hit.closer_than).toFixed(1)} % of random pairs. ${similarity}`;
  }
  const whole = (p) => Math.round(100 * p);
  return (
    `${whole(hit.probability)} % (${whole(hit.low)}–${whole(hit.high)}): of 100 such pairs in the check set about ` +
    `${whole(hit.probability)} showed the same thing. ${similarity}`
  );
}

export function title(hit) {
  return readableLabel(hit.columns.label) || fileName(joinText(hit.columns.path) || hit.id);
}
