// Messages for empty results, weak matches and errors, with suggested actions.

import * as api from "../api.js";
import { actionButton, formatNumber, h, plural, readableLabel } from "../dom.js";
import { navigate, urlFor } from "../router.js";
import { dialog } from "./dialogs.js";
import { parseFilter } from "./filters.js";

const filterName = (filter) => {
  const { column, value, drawn } = parseFilter(filter);
  return drawn ? "the chosen part of the map" : `${column}: ${readableLabel(value)}`;
};

/** Filters match nothing: offer each filter alone. */
export function noResults(state) {
  if (!state.f.length) return h("p.empty", "Nothing found.");
  const by = (f) => navigate(urlFor({ ...state, f, open: "" }));
  const alone = state.f.map((filter) => {
    const { value, drawn } = parseFilter(filter);
    const button = h("button", { disabled: true, onclick: () => by([filter]) });
    api
      .get(`facets?${new URLSearchParams({ f: filter, limit: "1" })}`)
      .then(({ images }) => {
        const label = drawn ? "that part" : readableLabel(value);
        button.textContent = `${label[0]?.toUpperCase() ?? ""}${label.slice(1)} alone: ${formatNumber(images)}.`;
        button.disabled = !images;
      })
      .catch(api.messageOf);
    return button;
  });
  return h(
    "div.empty",
    h("p", `No image has ${state.f.map(filterName).join(" and ")}.`),
    h(
      "p.row.center",
      alone,
      actionButton("Search without filters", () => by([])),
    ),
  );
}

/**
 * No good match: offer to crop or to remove a filter.
 * @param {{crop: () => void, ask: (state: any, k: number) => Promise<any>}} act
 */
export function weakMatchActions(state, act) {
  const row = h("div.row", state.like || state.q ? actionButton("Crop to what you mean", act.crop, ".main") : null);
  for (const filter of state.f) {
    const without = { ...state, f: state.f.filter((f) => f !== filter), open: "" };
    const button = actionButton(`Search without ${filterName(filter)}`, () => navigate(urlFor(without)));
    row.append(button);
    act
      .ask(without, 60)
      .then((answer) => {
        const likely = answer.hits.filter((hit) => hit.group === "likely").length;
        const matches = plural(likely, "likely match", "likely matches");
        button.textContent = `Search without ${filterName(filter)} (${matches})`;
      })
      .catch(api.messageOf);
  }
  return row;
}

/** Explain how to get calibrated percentages. */
export function howToCalibrate() {
  dialog(
    "How to calibrate",
    h("p", "Percentages need pairs of images that are known to show the same thing: at least 200 of them."),
    h(
      "p",
      "Put images of the same thing into one subfolder (its name becomes the label), or give a table with a column ",
      h("code", "label"),
      ", then run ",
      h("code", "lookalike index FOLDER"),
      " again: the scores are calibrated automatically.",
    ),
  );
}

/** @param {() => void} again @param {any} [other] */
export function errorBanner(error, again, other) {
  const wait = error.retry || 0;
  const banner = h("div.banner.bad", { role: "alert" }, h("span", withCode(error.message)));
  if (wait) {
    let left = wait;
    const words = h("span", `Trying again in ${left} s.`);
    const timer = setInterval(() => {
      left -= 1;
      if (!banner.isConnected) return clearInterval(timer);
      if (left > 0) {
        words.textContent = `Trying again in ${left} s.`;
        return;
      }
      clearInterval(timer);
      again();
    }, 1000);
    banner.append(
      words,
      actionButton("Now", () => {
        clearInterval(timer);
        again();
      }),
    );
  } else if (other) {
    banner.append(other);
  }
  return banner;
}

/** Text with backticked words as code elements. @param {string} message */
export function withCode(message) {
  return message.split("`").map((part, k) => (k % 2 ? h("code", part) : part));
}
