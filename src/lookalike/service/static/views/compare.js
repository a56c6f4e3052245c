// Compare a hit with the query: two images with a common zoom.

import { originalUrl, thumbUrl } from "../api.js";
import { onLongPress } from "../components/grid.js";
import { pinch } from "../components/pinch.js";
import { querySource } from "../components/results.js";
import { explainScore, title } from "../components/score.js";
import { fill, h, icon, iconButton, joinText, plural, readableLabel } from "../dom.js";
import { getState, isTouch } from "../store.js";

/** @param {Record<string, Function>} act callbacks: close, show, like, more, less, map */
export function compareDialog(answer, state, act) {
  const id = state.open;
  const place = answer.hits.findIndex((hit) => hit.id === id);
  const hit = answer.hits[place];
  if (!hit) return null;
  const view = { x: 0, y: 0, z: 1 };
  const stage = h("div.stage");
  const query = querySource(answer.query, state);
  const frames = [
    query && frame(query.src, query.alt, answer.query.kind === "item" ? "Query" : "Your image"),
    frame(thumbUrl(hit.thumb, 1024), title(hit), isTouch() && query ? "This hit (hold to see yours)" : "This hit"),
  ];
  fill(stage, frames);
  attachZoom(stage, view);
  const step = (by) => {
    const next = answer.hits[place + by];
    if (next) act.show(next.id);
  };
  const button = (symbol, name, go, off = false) =>
    iconButton(symbol, name, go, { class: "quiet icon", disabled: off });
  const dialog = h(
    "dialog.pair",
    { "aria-label": title(hit), "data-open": id, tabindex: -1 },
    h(
      "div.inside",
      h(
        "div.head",
        button("left", "Previous (←)", () => step(-1), place === 0),
        h("span.hint", `${place + 1} of ${answer.hits.length}`),
        button("right", "Next (→)", () => step(1), place === answer.hits.length - 1),
        h("span.grow"),
        query && button("swap", "Swap the two (Space)", () => dialog.classList.toggle("swapped")),
        button("close", "Close (Esc)", act.close),
      ),
      stage,
      h(
        "div",
        { class: `about ${hit.group ?? ""}` },
        h(
          "div",
          null,
          h("strong", `${hit.identical ? "Identical" : hit.sureness} · ${title(hit)}`),
          h("p", explainScore(hit)),
          h("p", h("bdi", joinText(hit.columns.path)), copies(hit), otherColumns(hit)),
        ),
        h(
          "div.row",
          h("button.main", { onclick: () => act.like(id) }, icon("like"), "More like this"),
          h(
            "button",
            { onclick: () => act.more(id), title: "More like this too (+)", "aria-label": "More like this too" },
            icon("plus"),
          ),
          h(
            "button",
            { onclick: () => act.less(id), title: "Less like this (−)", "aria-label": "Less like this" },
            icon("minus"),
          ),
          h("button", { onclick: () => act.map(id) }, icon("map"), h("span.wide", "On the map")),
          getState("info")?.originals
            ? h(
                "a.button",
                {
                  href: originalUrl(id),
                  target: "_blank",
                  rel: "noopener",
                  title: getState("info").metadata
                    ? "Contains place and camera data, if the file has them"
                    : "Without place and camera data",
                },
                "Original",
              )
            : null,
        ),
      ),
    ),
  );
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    act.close();
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") step(1);
    else if (event.key === "ArrowLeft") step(-1);
    else if (event.key === " " && query && event.target === dialog) dialog.classList.toggle("swapped");
    else return;
    event.preventDefault();
  });
  attachSwipe(dialog, view, step);
  if (query)
    onLongPress(
      stage,
      () => dialog.classList.add("held"),
      () => dialog.classList.remove("held"),
    );
  return dialog;
}

function frame(src, alt, name) {
  return h("figure", h("div.frame", h("img", { src, alt, draggable: "false" })), h("figcaption", name));
}

function copies(hit) {
  return hit.copies.length
    ? ` · ${plural(hit.copies.length, "copy", "copies")}: ${hit.copies.slice(0, 3).join(", ")}`
    : "";
}

/** The remaining columns as text. */
function otherColumns(hit) {
  const shown = ["path", "label", "content_id"];
  return Object.entries(hit.columns)
    .filter(([name]) => !shown.includes(name))
    .map(([name, value]) => ` · ${name}: ${readableLabel(value)}`)
    .join("");
}

/** Zoom and pan both images together. */
function attachZoom(stage, view) {
  const apply = () => {
    view.z = Math.min(Math.max(view.z, 1), 8);
    if (view.z === 1) view.x = view.y = 0;
    stage.style.setProperty("--z", String(view.z));
    stage.style.setProperty("--x", `${view.x}px`);
    stage.style.setProperty("--y", `${view.y}px`);
  };
  stage.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      view.z *= Math.exp(-event.deltaY / 400);
      apply();
    },
    { passive: false },
  );
  stage.addEventListener("dblclick", () => {
    view.z = view.z > 1 ? 1 : 2.5;
    apply();
  });
  pinch(stage, ({ before, after, factor }) => {
    view.z *= factor;
    view.x = view.x * factor + after[0] - before[0];
    view.y = view.y * factor + after[1] - before[1];
    apply();
  });
}

/** Swipe to the next hit on touch screens. */
function attachSwipe(node, view, step) {
  let from = 0;
  node.addEventListener("pointerdown", (event) => {
    if (event.isPrimary) from = event.clientX;
  });
  node.addEventListener("pointerup", (event) => {
    const moved = event.clientX - from;
    if (event.pointerType === "touch" && event.isPrimary && view.z === 1 && Math.abs(moved) > 60)
      step(moved < 0 ? 1 : -1);
  });
}
