// The query tray: positive and negative example images, and the trail of previous queries.

import { thumbUrl } from "../api.js";
import { actionButton, h, icon } from "../dom.js";
import { navigate, searchTrail, urlFor } from "../router.js";
import { title } from "./score.js";

export function queryTray(answer, state) {
  const rows = [
    ["more", "more like", "plus"],
    ["less", "less like", "minus"],
  ].map(([name, words, symbol]) => {
    const items = answer[name] ?? [];
    if (!items.length) return null;
    const drop = (id) => navigate(urlFor({ ...state, open: "", [name]: state[name].filter((x) => x !== id) }));
    return h(
      "span.tray",
      h("span.tray-name", icon(symbol), words),
      items.map((item) =>
        h(
          "button",
          { title: "Remove", "aria-label": `Remove ${title(item)}`, onclick: () => drop(item.id) },
          h("img", { src: thumbUrl(item.thumb, 96), alt: "" }),
          h("span", icon("close")),
        ),
      ),
    );
  });
  if (!rows.some(Boolean)) return null;
  const alone = (answer.more ?? []).length
    ? actionButton("Search by these", () =>
        navigate(urlFor({ more: state.more, less: state.less, f: state.f, sort: state.sort })),
      )
    : null;
  return h("div.trays", rows, state.like || state.q ? alone : null);
}

/** The previous query images, oldest first. */
export function breadcrumbs() {
  const steps = searchTrail();
  if (steps.length < 2) return null;
  return h(
    "nav.way",
    { "aria-label": "Previous queries" },
    h("a", { href: "/" }, "start"),
    steps
      .slice(-6)
      .map((step, k, all) => [
        h("span", { "aria-hidden": "true" }, "›"),
        h(
          "a",
          { href: urlFor({ like: step.id }), "aria-current": k === all.length - 1 ? "step" : null, title: step.name },
          h("img", { src: thumbUrl(step.thumb, 96), alt: step.name }),
        ),
      ]),
  );
}
