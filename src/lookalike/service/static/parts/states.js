// What is said when there is nothing to show, and what can be done about it.

import * as api from "../api.js";
import { count, fill, h, readable } from "../dom.js";
import { address, go, question } from "../router.js";
import { dialog } from "./dialogs.js";
import { parts } from "./facets.js";

const name = (/** @type {string} */ filter) => {
  const { column, value } = parts(filter);
  return column === "area" ? "the chosen part of the map" : `${column}: ${readable(value)}`;
};

/** Filters that leave nothing: what each of them alone would leave. @param {any} state */
export function nothing(state) {
  if (!state.f.length) return h("p", { class: "empty" }, "Nothing found.");
  const alone = h("p", { class: "row centre" });
  const words = state.f.map(name);
  Promise.all(state.f.map(async (/** @type {string} */ filter) => {
    const { column, value } = parts(filter);
    if (column === "area" || column.endsWith("!") || value.endsWith("*")) return null;
    const { values } = await api.get(`/api/v1/facets/${encodeURIComponent(column)}?limit=1000`);
    const number = values.find((/** @type {any} */ v) => v.value === value)?.count ?? 0;
    const label = readable(value);
    return h("button", { type: "button", disabled: !number, onclick: () => go(address({ ...state, f: [filter], open: "" })) },
      `${label[0]?.toUpperCase() ?? ""}${label.slice(1)} alone: ${number.toLocaleString("en-GB")}.`);
  })).then((buttons) => fill(alone, buttons, state.f.length ? h("button", { type: "button", onclick: () => go(address({ ...state, f: [], open: "" })) }, "Search without filters") : null))
    .catch(() => fill(alone));
  return h("div", { class: "empty" }, h("p", null, `No picture has ${words.join(" and ")}.`), alone);
}

/** No good match: crop, or leave out a filter. @param {any} state @param {{crop: () => void}} act */
export function weak(state, act) {
  const row = h("div", { class: "row" }, state.like || state.q ? h("button", { type: "button", class: "main", onclick: act.crop }, "Crop to what you mean") : null);
  for (const filter of state.f) {
    const without = { ...state, f: state.f.filter((/** @type {string} */ f) => f !== filter), open: "" };
    const button = h("button", { type: "button", onclick: () => go(address(without)) }, `Search without ${name(filter)}`);
    row.append(button);
    api.get(question(without, 60)).then((answer) => {
      const likely = answer.hits.filter((/** @type {any} */ hit) => hit.group === "likely").length;
      button.textContent = `Search without ${name(filter)} (${count(likely, "likely match", "likely matches")})`;
    }).catch(() => {});
  }
  return row;
}

/** Why there are no percentages, and how to get them. */
export function howToCalibrate() {
  dialog("How to calibrate", h("p", null, "Percentages need pairs of pictures that are known to show the same thing: at least 200 of them."),
    h("p", null, "Put pictures of one thing into one subfolder (its name becomes the label), or give a table with a column ", h("code", null, "label"), ", then run ", h("code", null, "lookalike index FOLDER"), " again: the scores are checked on them by themselves."));
}

/** @param {any} error @param {() => void} again @param {any} [other] */
export function failure(error, again, other) {
  const wait = error.retry || 0;
  const banner = h("div", { class: "banner bad", role: "alert" }, h("span", null, ticked(error.message)));
  if (wait) {
    let left = wait;
    const words = h("span", null, `Trying again in ${left} s.`);
    const timer = setInterval(() => {
      left -= 1;
      if (!banner.isConnected) return clearInterval(timer);
      if (left > 0) return void (words.textContent = `Trying again in ${left} s.`);
      clearInterval(timer);
      again();
    }, 1000);
    banner.append(words, h("button", { type: "button", onclick: () => { clearInterval(timer); again(); } }, "Now"));
  } else if (other) {
    banner.append(other);
  }
  return banner;
}

/** Words in backticks as code. @param {string} sentence */
export function ticked(sentence) {
  return sentence.split("`").map((part, k) => (k % 2 ? h("code", null, part) : part));
}
