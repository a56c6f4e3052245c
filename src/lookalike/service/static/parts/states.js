// What is said when there is nothing to show, and what can be done about it.

import * as api from "../api.js";
import { count, digits, h, readable } from "../dom.js";
import { address, go, question } from "../router.js";
import { dialog } from "./dialogs.js";
import { parts } from "./facets.js";

const name = (filter) => {
  const { column, value } = parts(filter);
  return column === "area" ? "the chosen part of the map" : `${column}: ${readable(value)}`;
};

/** Filters that leave nothing: what each of them alone would leave. */
export function nothing(state) {
  if (!state.f.length) return h("p", { class: "empty" }, "Nothing found.");
  const by = (f) => go(address({ ...state, f, open: "" }));
  const alone = state.f.map((filter) => {
    const { column, value } = parts(filter);
    const button = h("button", { disabled: true, onclick: () => by([filter]) });
    api.get(`/api/v1/facets?${new URLSearchParams({ f: filter, limit: "1" })}`).then(({ pictures }) => {
      const label = column === "area" ? "that part" : readable(value);
      button.textContent = `${label[0]?.toUpperCase() ?? ""}${label.slice(1)} alone: ${digits(pictures)}.`;
      button.disabled = !pictures;
    }).catch(api.said);
    return button;
  });
  return h("div", { class: "empty" }, h("p", null, `No picture has ${state.f.map(name).join(" and ")}.`),
    h("p", { class: "row centre" }, alone, h("button", { onclick: () => by([]) }, "Search without filters")));
}

/** No good match: crop, or leave out a filter. @param {{crop: () => void}} act */
export function weak(state, act) {
  const row = h("div", { class: "row" }, state.like || state.q ? h("button", { class: "main", onclick: act.crop }, "Crop to what you mean") : null);
  for (const filter of state.f) {
    const without = { ...state, f: state.f.filter((f) => f !== filter), open: "" };
    const button = h("button", { onclick: () => go(address(without)) }, `Search without ${name(filter)}`);
    row.append(button);
    api.get(question(without, 60)).then((answer) => {
      const likely = answer.hits.filter((hit) => hit.group === "likely").length;
      button.textContent = `Search without ${name(filter)} (${count(likely, "likely match", "likely matches")})`;
    }).catch(api.said);
  }
  return row;
}

/** Why there are no percentages, and how to get them. */
export function howToCalibrate() {
  dialog("How to calibrate", h("p", null, "Percentages need pairs of pictures that are known to show the same thing: at least 200 of them."),
    h("p", null, "Put pictures of one thing into one subfolder (its name becomes the label), or give a table with a column ", h("code", null, "label"), ", then run ", h("code", null, "lookalike index FOLDER"), " again: the scores are checked on them by themselves."));
}

/** @param {() => void} again @param {any} [other] */
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
    banner.append(words, h("button", { onclick: () => { clearInterval(timer); again(); } }, "Now"));
  } else if (other) {
    banner.append(other);
  }
  return banner;
}

/** Words in backticks as code. @param {string} sentence */
export function ticked(sentence) {
  return sentence.split("`").map((part, k) => (k % 2 ? h("code", null, part) : part));
}
