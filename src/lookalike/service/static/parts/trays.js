// More like these, less like those: images put aside as examples, and the way one came.

import { thumb } from "../api.js";
import { action, h, icon } from "../dom.js";
import { address, go, trail } from "../router.js";
import { title } from "./score.js";

export function trays(answer, state) {
  const rows = [["more", "more like", "plus"], ["less", "less like", "minus"]].map(([name, words, symbol]) => {
    const items = answer[name] ?? [];
    if (!items.length) return null;
    const drop = (id) => go(address({ ...state, open: "", [name]: state[name].filter((x) => x !== id) }));
    return h("span.tray", h("span.tray-name", icon(symbol), words), items.map((item) =>
      h("button", { title: "Take away", "aria-label": `Take away ${title(item)}`, onclick: () => drop(item.id) },
        h("img", { src: thumb(item.thumb, 96), alt: "" }), h("span", icon("close")))));
  });
  if (!rows.some(Boolean)) return null;
  const alone = (answer.more ?? []).length ? action("Search by these", () => go(address({ more: state.more, less: state.less, f: state.f, sort: state.sort }))) : null;
  return h("div.trays", rows, state.like || state.q ? alone : null);
}

/** The images one came by, oldest first. */
export function way(query) {
  const steps = trail();
  if (steps.length < 2) return null;
  return h("nav.way", { "aria-label": "The way here" }, h("a", { href: "/" }, "start"),
    steps.slice(-6).map((step, k, all) => [h("span", { "aria-hidden": "true" }, "›"),
      h("a", { href: address({ like: step.id }), "aria-current": k === all.length - 1 ? "step" : null, title: step.name },
        h("img", { src: thumb(step.thumb, 96), alt: step.name }))]));
}
