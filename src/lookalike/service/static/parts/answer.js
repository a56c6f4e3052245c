// An answer, drawn: the verdict with the question beside it, then the groups of hits.

import * as api from "../api.js";
import { count, fill, h, icon, readable, toast } from "../dom.js";
import { address, go, question, read } from "../router.js";
import { on, value } from "../store.js";
import { crop } from "./crop.js";
import * as facets from "./facets.js";
import { cell, grid, tool } from "./grid.js";
import { copyLink } from "./share.js";
import { howToCalibrate, nothing, weak } from "./states.js";
import { GROUPS, title } from "./score.js";
import { trays, way } from "./trays.js";

export const shown = (/** @type {string} */ src, /** @type {string} */ alt) => h("div", { class: "shown" }, h("img", { src, alt }));

/** @param {any} state */
export function chips(state) {
  return h("div", { class: "row centre" }, facets.chips(state.f, (f) => go(address({ ...read(location), f, open: "" }))));
}

/** @param {any} query */
function source(query) {
  if (query.kind === "item") return { src: api.thumb(query.thumb, 1024), alt: title(query) };
  const src = query.preview ?? (query.id ? api.queryPicture(query.id) : "");
  return src ? { src, alt: "Your picture" } : null;
}

/** @type {any} */
let cropping = null;
/** Open the crop, where there is a picture to crop. */
export const enterCrop = () => cropping ? cropping.enter() : document.getElementById("crop")?.click();

/** @param {HTMLElement} place @param {any} answer @param {any} state @param {any} act */
export function head(place, answer, state, act) {
  const info = value("info");
  const { query } = answer;
  const from = source(query);
  const change = (/** @type {string[]} */ f) => go(address({ ...read(location), f, open: "" }));
  const columns = info.index.columns.filter((/** @type {string} */ c) => c !== "path");
  const filter = h("button", { type: "button", id: "filters", onclick: () => facets.open(columns, read(location).f, change,
    async (f) => (await api.get(question({ ...read(location), f }, 60))).pictures) }, icon("filter"), "Filter");
  const orders = [["match", "match"], ...(answer.hits.some((/** @type {any} */ hit) => hit.columns.date) ? [["date", "date"]] : []), ["label", "label"], ["name", "name"]];
  const sort = h("select", { "aria-label": "Sort", onchange: (/** @type {any} */ e) => go(address({ ...state, sort: e.target.value }), { replace: true }) },
    orders.map(([key, name]) => h("option", { value: key, selected: state.sort === key }, `Sort: ${name}`)));
  const cut = from ? h("button", { type: "button", id: "crop", "aria-expanded": String(Boolean(cropping)), onclick: () => toggle() }, icon("crop"), state.box ? "Cropped" : "Crop") : null;
  const picture = h("div", { class: "asked" });
  // The same frame stays while the answers follow it.
  const keep = cropping && from && cropping.source === from.src && place.contains(cropping) ? cropping : null;
  const focused = keep && keep.contains(document.activeElement);

  function toggle() {
    if (cropping) {
      cropping = null;
      fill(picture, from ? small(from, state) : null);
    } else if (from) {
      cropping = crop({ ...from, box: read(location).box, change: (box) => go(address({ ...read(location), box, open: "" }), { replace: true }), close: toggle });
      fill(picture, cropping);
      cropping.enter();
    }
    place.classList.toggle("cropping", Boolean(cropping));
    cut?.setAttribute("aria-expanded", String(Boolean(cropping)));
  }
  cropping = keep;
  fill(picture, keep ?? (from ? small(from, state) : null));
  place.classList.toggle("cropping", Boolean(keep));
  fill(place, from ? picture : null, h("div", { class: "words" },
    way(query), verdict(answer, state, act),
    query.kind === "item" ? h("p", null, `Like ${readable(query.columns.label) || ""} `, h("bdi", null, query.columns.path)) : null,
    query.kind === "words" || (info.words && query.kind === "none") ? act.describe(state) : null,
    trays(answer, state),
    h("div", { class: "row tools" }, facets.chips(state.f, change), columns.length ? filter : null, cut, sort,
      h("button", { type: "button", class: "quiet", title: "Copy the link (y)", onclick: copyLink }, icon("link"), h("span", { class: "wide" }, "Link")),
      h("button", { type: "button", "aria-label": "Another picture", onclick: act.choose }, icon("picture"), h("span", { class: "wide" }, "Another picture"))),
    kept(query)));
  if (focused) cropping.enter();
}

/** @param {any} from @param {any} state */
function small(from, state) {
  const node = shown(from.src, from.alt);
  if (!state.box) return node;
  const [x1, y1, x2, y2] = state.box.split(",").map(Number);
  node.append(h("i", { class: "cut", "aria-hidden": "true", "--l": `${100 * x1}%`, "--t": `${100 * y1}%`, "--w": `${100 * (x2 - x1)}%`, "--h": `${100 * (y2 - y1)}%` }));
  return node;
}

/** The sentence, the time, and what else must be known. @param {any} answer @param {any} state @param {any} act */
function verdict(answer, state, act) {
  const { kind, sentence, detail, note } = answer.verdict;
  const time = h("small", null, ` ${Math.max(1, Math.round(answer.milliseconds))} ms`);
  const words = state.box ? sentence.replace(/ in [\d,]+ pictures?$/, " for the cropped part") : sentence;
  if (!answer.hits.length) return h("h1", { tabindex: -1 }, "Nothing is left", time);
  if (kind === "uncalibrated") {
    return [h("h1", { tabindex: -1 }, "Sorted by similarity.", time),
      h("p", null, "This index has no labelled pairs, so there are no percentages. ", h("button", { type: "button", class: "linkish", onclick: howToCalibrate }, "How to calibrate")), indexing()];
  }
  return [h("h1", { tabindex: -1 }, words, kind === "none" ? "." : "", time), detail ? h("p", { class: note ? "rough" : null }, detail) : null,
    indexing(), kind === "none" ? weak(state, act) : null];
}

/** While pictures still arrive. */
function indexing() {
  const line = h("p", { class: "arriving" });
  const tell = (/** @type {any} */ moving) => {
    const job = moving?.job?.kind === "index" && moving.job.total ? moving.job : null;
    const left = job?.seconds_left ? `; the rest arrive in about ${job.seconds_left} s.` : "; the rest arrive soon.";
    line.textContent = job ? `Searching ${moving.index.pictures.toLocaleString("en-GB")} of ${Math.max(moving.index.pictures - job.done + job.total, moving.index.pictures).toLocaleString("en-GB")} pictures${left}` : "";
    line.hidden = !job;
  };
  tell(value("moving"));
  const stop = on("moving", (moving) => (line.isConnected || !line.parentNode ? tell(moving) : stop()));
  return line;
}

/** @param {any} query */
function kept(query) {
  if (query.kind !== "upload" || !query.id) return null;
  const days = value("info").limits.keep_days;
  const forget = async () => {
    await api.send(`/api/v1/queries/${query.id}`, null, "DELETE");
    api.forgetAnswers();
    toast("Forgotten. The link no longer works.");
    go("/");
  };
  return h("p", { class: "kept" }, `Kept on this server for ${days} days so that the link works. `,
    h("button", { type: "button", class: "quiet", onclick: forget }, "Forget now"));
}

/** @param {any} answer @param {any} state @param {any} act */
export function groups(answer, state, act) {
  if (!answer.hits.length) return nothing(state);
  const make = (/** @type {any} */ hit, /** @type {number} */ n) => cell(hit, {
    href: address({ ...state, open: hit.id }), eager: n < 6, rough: Boolean(answer.verdict.note),
    tools: [tool("like", "More like this (m)", () => act.like(hit.id)), tool("plus", "More like this too (+)", () => act.more(hit.id)),
      tool("minus", "Less like this (−)", () => act.less(hit.id))],
  });
  if (answer.hits[0].group === null) return h("section", { class: "group" }, grid(sorted(answer.hits, state.sort).map(make), { label: "Hits" }));
  return GROUPS.map(([name, words]) => {
    const hits = answer.hits.filter((/** @type {any} */ hit) => hit.group === name);
    if (!hits.length) return null;
    return h("section", { class: `group ${name}` }, h("h2", null, h("b", null, words), h("span", null, String(hits.length))),
      grid(sorted(hits, state.sort).map(make), { label: words, weak: name === "similar" }));
  });
}

/** @param {any[]} hits @param {string} sort */
function sorted(hits, sort) {
  if (sort === "match") return hits;
  const key = (/** @type {any} */ hit) => (sort === "label" ? readable(hit.columns.label) : sort === "date" ? String(hit.columns.date ?? "") : hit.columns.path ?? hit.id);
  const order = [...hits].sort((a, b) => key(a).localeCompare(key(b), "en-GB", { numeric: true }));
  return sort === "date" ? order.reverse() : order;
}

/** Sixty more, by button or by scrolling there. @param {any} answer @param {number} k @param {any} act */
export function more(answer, k, act) {
  const most = value("info").limits.hits;
  if (answer.hits.length >= most) return h("p", { class: "empty" }, `The first ${most} of ${answer.pictures.toLocaleString("en-GB")}, best first. Filter to see others.`);
  if (answer.hits.length < k) return null;
  const button = h("button", { type: "button", onclick: () => { watch.disconnect(); act.further(); } }, "Show 60 more");
  const watch = new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && button.click(), { rootMargin: "200px" });
  const row = h("div", { class: "row centre" }, button, h("small", { class: "kept" }, `${count(answer.hits.length, "hit")} of all ${answer.pictures.toLocaleString("en-GB")}`));
  addEventListener("scroll", () => row.isConnected && watch.observe(button), { once: true, passive: true });
  return row;
}
