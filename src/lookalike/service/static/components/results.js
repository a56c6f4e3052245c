// Search results: the query with the verdict, then groups of hits.

import * as api from "../api.js";
import { actionButton, fill, formatNumber, h, icon, iconButton, plural, readableLabel, toast } from "../dom.js";
import { navigate, readUrl, urlFor } from "../router.js";
import { getState, subscribe } from "../store.js";
import { copyLink } from "./copy_link.js";
import { crop } from "./crop.js";
import * as facets from "./filters.js";
import { cell, grid } from "./grid.js";
import { howToCalibrate, noResults, weakMatchActions, withCode } from "./messages.js";
import { breadcrumbs, queryTray } from "./query_tray.js";
import { GROUPS, title } from "./score.js";
import { localImages } from "./upload.js";

export { errorBanner } from "./messages.js";
export const imageFrame = (src, alt) => h("div.shown", h("img", { src, alt }));

export function filterChips(state) {
  return h(
    "div.row.center",
    facets.chips(state.f, (f) => navigate(urlFor({ ...readUrl(), f, open: "" }))),
  );
}

/** The query image, if there is one. */
export function querySource(query, state) {
  const ratio = query.ratio || 1;
  if (query.kind === "item") return { src: api.thumbUrl(query.thumb, 1024), alt: title(query), ratio };
  const src = localImages.get(state.q)?.preview ?? (query.id ? api.queryImageUrl(query.id) : "");
  return src ? { src, alt: "Your image", ratio } : null;
}

let cropping = null;
let toggle = () => {};
/** Open the crop frame if there is a query image. */
export const enterCrop = () => (cropping?.isConnected ? cropping.enter() : document.getElementById("crop")?.click());
/** Close the crop frame; whether it was open. */
export function leaveCrop() {
  const open = Boolean(cropping?.isConnected);
  if (open) toggle();
  return open;
}

/** @param {HTMLElement} place */
export function drawHeader(place, answer, state, act) {
  const info = getState("info");
  const { query } = answer;
  const from = querySource(query, state);
  const change = (f) => navigate(urlFor({ ...readUrl(), f, open: "" }));
  const filter = h(
    "button",
    { id: "filters", onclick: () => facets.openFilters(readUrl(), change) },
    icon("filter"),
    "Filter",
  );
  const orders = [
    ["match", "match"],
    ...(answer.hits.some((hit) => hit.columns.date) ? [["date", "date"]] : []),
    ["label", "label"],
    ["name", "name"],
  ];
  const sort = h(
    "select",
    { "aria-label": "Sort", onchange: (e) => navigate(urlFor({ ...state, sort: e.target.value }), { replace: true }) },
    orders.map(([key, name]) => h("option", { value: key, selected: state.sort === key }, `Sort: ${name}`)),
  );
  const cut = from
    ? h("button", { id: "crop", onclick: () => toggle() }, icon("crop"), state.box ? "Cropped" : "Crop")
    : null;
  // Keep the crop frame in place while it is being dragged; only the results beside it are redrawn.
  const keep = cropping && from && cropping.source === from.src && place.contains(cropping) ? cropping : null;
  const image = keep ? keep.parentElement : h("div.query-image", from ? croppedPreview(from, state) : null);
  toggle = () => {
    if (cropping) {
      cropping = null;
      fill(image, from ? croppedPreview(from, readUrl()) : null);
      cut?.focus({ preventScroll: true });
    } else if (from) {
      cropping = crop({
        ...from,
        box: readUrl().box,
        change: (box) => navigate(urlFor({ ...readUrl(), box, open: "" }), { replace: true }),
        close: leaveCrop,
      });
      fill(image, cropping);
      cropping.enter();
    }
    place.classList.toggle("cropping", Boolean(cropping));
    cut?.setAttribute("aria-expanded", String(Boolean(cropping)));
  };
  cropping = keep;
  place.classList.toggle("cropping", Boolean(keep));
  cut?.setAttribute("aria-expanded", String(Boolean(keep)));
  const words = h(
    "div.words",
    breadcrumbs(),
    verdict(answer, state, act),
    query.kind === "item" ? h("p", `Like ${title(query)} · `, h("bdi", query.columns.path)) : null,
    query.kind === "text" || (info.text && query.kind === "none") ? act.describe(state) : null,
    queryTray(answer, state),
    h(
      "div.row.tools",
      facets.chips(state.f, change),
      info.index.columns.length ? filter : null,
      cut,
      sort,
      h("button.quiet", { title: "Copy the link (y)", onclick: copyLink }, icon("link"), h("span.wide", "Link")),
      h(
        "button",
        { "aria-label": "Another image", onclick: act.choose },
        icon("image"),
        h("span.wide", "Another image"),
      ),
    ),
    retentionNote(query),
  );
  if (keep) place.querySelector(".words")?.replaceWith(words);
  else fill(place, from ? image : null, words);
}

function croppedPreview(from, state) {
  const node = imageFrame(from.src, from.alt);
  if (!state.box) return node;
  const [x1, y1, x2, y2] = state.box.split(",").map(Number);
  node.append(
    h("i.cut", {
      "aria-hidden": "true",
      "--l": `${100 * x1}%`,
      "--t": `${100 * y1}%`,
      "--w": `${100 * (x2 - x1)}%`,
      "--h": `${100 * (y2 - y1)}%`,
    }),
  );
  return node;
}

/** The verdict, the search time and notes. */
function verdict(answer, state, act) {
  const { kind, message, detail, note } = answer.verdict;
  const time = h("small", ` · ${Math.max(1, Math.round(answer.milliseconds))} ms`);
  const words = state.box ? message.replace(/ in [\d,]+ images?$/, " for the cropped part") : message;
  if (!answer.hits.length) return h("h1", { tabindex: -1 }, "No results", time);
  if (kind === "uncalibrated") {
    return [
      h("h1", { tabindex: -1 }, "Sorted by similarity.", time),
      note
        ? h("p", withCode(note))
        : h(
            "p",
            "This index has no labeled pairs, so there are no percentages. ",
            actionButton("How to calibrate", howToCalibrate, ".linkish"),
          ),
      indexingNote(),
    ];
  }
  return [
    h("h1", { tabindex: -1 }, words, kind === "none" ? "." : "", time),
    detail ? h("p", { class: note ? "rough" : null }, withCode(detail)) : null,
    indexingNote(),
    kind === "none" ? weakMatchActions(state, act) : null,
  ];
}

/** A note while images are still being indexed. */
function indexingNote() {
  const line = h("p.arriving");
  const tell = (status) => {
    const job = status?.job?.kind === "index" && status.job.total ? status.job : null;
    const left = job?.seconds_left ? `; the rest follows in about ${job.seconds_left} s.` : "; the rest follows soon.";
    const all = job ? status.index.images + Math.max(job.total - job.done, 0) : 0;
    const count = `${formatNumber(status?.index.images ?? 0)} of ${formatNumber(all)}`;
    line.textContent = job ? `Searching ${count} images${left}` : "";
    line.hidden = !job;
  };
  tell(getState("status"));
  const stop = subscribe("status", (status) => (line.isConnected || !line.parentNode ? tell(status) : stop()));
  return line;
}

function retentionNote(query) {
  if (query.kind !== "upload" || !query.id) return null;
  const days = getState("info").limits.keep_days;
  const forget = async () => {
    await api.send(`queries/${query.id}`, null, "DELETE");
    api.clearCache();
    toast("Deleted. The link no longer works.");
    navigate("/");
  };
  return h(
    "p.hint",
    `Stored on this server for up to ${days} days so that the link works. `,
    actionButton("Delete now", forget, ".quiet"),
  );
}

export function hitGroups(answer, state, act) {
  if (!answer.hits.length) return noResults(state);
  const make = (hit, n) =>
    cell(hit, {
      href: urlFor({ ...state, open: hit.id }),
      eager: n < 6,
      rough: Boolean(answer.verdict.note),
      tools: [
        ["like", "More like this (m)", act.like],
        ["plus", "More like this too (+)", act.more],
        ["minus", "Less like this (−)", act.less],
      ].map(([symbol, name, what]) => iconButton(symbol, name, () => what(hit.id), { tabindex: -1 })),
    });
  if (answer.hits[0].group === null)
    return h("section.group", grid(sortHits(answer.hits, state.sort).map(make), { label: "Hits" }));
  return GROUPS.map(([name, words]) => {
    const hits = answer.hits.filter((hit) => hit.group === name);
    if (!hits.length) return null;
    return h(
      "section",
      { class: `group ${name}` },
      h("h2", h("b", words), h("span", String(hits.length))),
      grid(sortHits(hits, state.sort).map(make), { label: words, weak: name === "similar" }),
    );
  });
}

function sortHits(hits, sort) {
  if (sort === "match") return hits;
  const key = (hit) =>
    sort === "label"
      ? readableLabel(hit.columns.label)
      : sort === "date"
        ? String(hit.columns.date ?? "")
        : (hit.columns.path ?? hit.id);
  const order = [...hits].sort((a, b) => key(a).localeCompare(key(b), "en-US", { numeric: true }));
  return sort === "date" ? order.reverse() : order;
}

/** Load sixty more hits, by button or by scrolling. @param {number} k */
export function moreButton(answer, k, act) {
  const most = getState("info").limits.hits;
  if (answer.hits.length >= most)
    return h("p.empty", `The first ${most} of ${formatNumber(answer.images)}, best first. Filter to see others.`);
  if (answer.hits.length < k) return null;
  const button = actionButton("Show 60 more", () => {
    button.disabled = true;
    watch.disconnect();
    act.further();
  });
  const watch = new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && button.click(), {
    rootMargin: "200px",
  });
  const row = h(
    "div.row.center",
    button,
    h("small.hint", `${plural(answer.hits.length, "hit")} of all ${formatNumber(answer.images)}`),
  );
  addEventListener("scroll", () => row.isConnected && watch.observe(button), { once: true, passive: true });
  return row;
}
