// What is said when there is nothing to show, and what can be done about it.

import * as api from "../api.js";
import { action, count, digits, h, readable } from "../dom.js";
import { address, go } from "../router.js";
import { dialog } from "./dialogs.js";
import { parts } from "./facets.js";

const name = (filter) => {
  const { column, value, drawn } = parts(filter);
  return drawn ? "the chosen part of the map" : `${column}: ${readable(value)}`;
};

/** Filters that leave nothing: what each of them alone would leave. */
export function nothing(state) {
  if (!state.f.length) return h("p.empty", "Nothing found.");
  const by = (f) => go(address({ ...state, f, open: "" }));
  const alone = state.f.map((filter) => {
    const { value, drawn } = parts(filter);
    const button = h("button", { disabled: true, onclick: () => by([filter]) });
    api.get(`facets?${new URLSearchParams({ f: filter, limit: "1" })}`).then(({ images }) => {
      const label = drawn ? "that part" : readable(value);
      button.textContent = `${label[0]?.toUpperCase() ?? ""}${label.slice(1)} alone: ${digits(images)}.`;
      button.disabled = !images;
    }).catch(api.said);
    return button;
  });
  return h("div.empty", h("p", `No image has ${state.f.map(name).join(" and ")}.`),
    h("p.row.center", alone, action("Search without filters", () => by([]))));
}

/** No good match: crop, or leave out a filter. @param {{crop: () => void, ask: (state: any, k: number) => Promise<any>}} act */
export function weak(state, act) {
  const row = h("div.row", state.like || state.q ? action("Crop to what you mean", act.crop, ".main") : null);
  for (const filter of state.f) {
    const without = { ...state, f: state.f.filter((f) => f !== filter), open: "" };
    const button = action(`Search without ${name(filter)}`, () => go(address(without)));
    row.append(button);
    act.ask(without, 60).then((answer) => {
      const likely = answer.hits.filter((hit) => hit.group === "likely").length;
      button.textContent = `Search without ${name(filter)} (${count(likely, "likely match", "likely matches")})`;
    }).catch(api.said);
  }
  return row;
}

/** Why there are no percentages, and how to get them. */
export function howToCalibrate() {
  dialog("How to calibrate", h("p", "Percentages need pairs of images that are known to show the same thing: at least 200 of them."),
    h("p", "Put images of one thing into one subfolder (its name becomes the label), or give a table with a column ", h("code", "label"), ", then run ", h("code", "lookalike index FOLDER"), " again: the scores are checked on them by themselves."));
}

/** @param {() => void} again @param {any} [other] */
export function failure(error, again, other) {
  const wait = error.retry || 0;
  const banner = h("div.banner.bad", { role: "alert" }, h("span", ticked(error.message)));
  if (wait) {
    let left = wait;
    const words = h("span", `Trying again in ${left} s.`);
    const timer = setInterval(() => {
      left -= 1;
      if (!banner.isConnected) return clearInterval(timer);
      if (left > 0) return void (words.textContent = `Trying again in ${left} s.`);
      clearInterval(timer);
      again();
    }, 1000);
    banner.append(words, action("Now", () => { clearInterval(timer); again(); }));
  } else if (other) {
    banner.append(other);
  }
  return banner;
}

/** Words in backticks as code. @param {string} sentence */
export function ticked(sentence) {
  return sentence.split("`").map((part, k) => (k % 2 ? h("code", part) : part));
}
