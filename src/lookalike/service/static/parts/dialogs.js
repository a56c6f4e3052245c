// What the server holds, and the keys.

import { count, h, icon } from "../dom.js";

/** @param {string} title @param {...any} content */
export function dialog(title, ...content) {
  const close = h("button", { type: "button", class: "quiet icon", "aria-label": "Close", onclick: () => node.close() },
    icon("close"));
  /** @type {any} */
  const node = h("dialog", { "aria-label": title, onclose: () => node.remove() },
    h("div", { class: "inside" }, h("div", { class: "head" }, h("h2", null, title), close), content));
  node.addEventListener("click", (/** @type {Event} */ event) => event.target === node && node.close());
  document.body.append(node);
  node.showModal();
  return node;
}

/** @param {any} info */
export function about(info) {
  const { index, model, scores } = info;
  const checked = scores.calibrated
    ? `checked on ${count(scores.pairs, "pair")} of the same thing` +
      (scores.error === null ? "" : `, off by ${(100 * scores.error).toFixed(1)} points on average`)
    : `none: ${scores.why || "too few labelled pairs"}`;
  const rows = [
    ["Index", index.name],
    ["Pictures", index.pictures.toLocaleString("en-GB") + (index.complete ? "" : " (indexing is not finished)")],
    ["Updated", index.updated.replace("T", " ").slice(0, 16)],
    ["Model", `${model.name} · ${model.fingerprint.slice(0, 4)}`],
    ["Percentages", checked],
    ["lookalike", info.version],
  ];
  dialog("This server", h("dl", { class: "facts" }, rows.map(([name, value]) => [h("dt", null, name), h("dd", null, value)])));
}

const KEYS = [
  ["Ctrl V", "search by the picture on the clipboard"],
  ["/", "choose a picture"],
  ["Arrows", "move between pictures"],
  ["Enter", "open a picture beside yours"],
  ["m", "more like this"],
  ["+ −", "more like this too, less like this"],
  ["f", "filters"],
  ["← → Space", "opened: next, swap the two"],
  ["y", "copy the link to what you see"],
  ["g s, g r", "search, reports"],
  ["Esc", "close"],
];

export const letterKeys = () => localStorage.getItem("letter-keys") !== "off";

export function help() {
  const box = h("input", { type: "checkbox", checked: letterKeys(), onchange: (/** @type {any} */ event) =>
    localStorage.setItem("letter-keys", event.target.checked ? "on" : "off") });
  dialog("Keys", h("div", { class: "keys" }, KEYS.map(([key, what]) => [h("kbd", null, key), h("span", null, what)])),
    h("label", { class: "row" }, box, "Letter keys"));
}
