// An answer, drawn: the verdict with the question beside it, then the groups of hits.

import * as api from "../api.js";
import { action, count, digits, fill, h, icon, press, readable, toast } from "../dom.js";
import { address, go, read } from "../router.js";
import { on, value } from "../store.js";
import { crop } from "./crop.js";
import * as facets from "./facets.js";
import { cell, grid } from "./grid.js";
import { hand } from "./intake.js";
import { copyLink } from "./share.js";
import { howToCalibrate, nothing, weak } from "./states.js";
import { GROUPS, title } from "./score.js";
import { trays, way } from "./trays.js";

export { failure } from "./states.js";
export const shown = (src, alt) => h("div.shown", h("img", { src, alt }));

export function chips(state) {
  return h("div.row.center", facets.chips(state.f, (f) => go(address({ ...read(), f, open: "" }))));
}

/** The image that is asked by, where there is one. */
export function source(query, state) {
  const ratio = query.ratio || 1;
  if (query.kind === "item") return { src: api.thumb(query.thumb, 1024), alt: title(query), ratio };
  const src = hand.get(state.q)?.preview ?? (query.id ? api.queryImage(query.id) : "");
  return src ? { src, alt: "Your image", ratio } : null;
}

let cropping = null;
let toggle = () => {};
/** Open the crop, where there is an image to crop. */
export const enterCrop = () => cropping?.isConnected ? cropping.enter() : document.getElementById("crop")?.click();
/** Close it; whether it was open. */
export const leaveCrop = () => Boolean(cropping?.isConnected) && (toggle(), true);

/** @param {HTMLElement} place */
export function head(place, answer, state, act) {
  const info = value("info");
  const { query } = answer;
  const from = source(query, state);
  const change = (f) => go(address({ ...read(), f, open: "" }));
  const filter = h("button", { id: "filters", onclick: () => facets.open(read(), change) }, icon("filter"), "Filter");
  const orders = [["match", "match"], ...(answer.hits.some((hit) => hit.columns.date) ? [["date", "date"]] : []), ["label", "label"], ["name", "name"]];
  const sort = h("select", { "aria-label": "Sort", onchange: (e) => go(address({ ...state, sort: e.target.value }), { replace: true }) },
    orders.map(([key, name]) => h("option", { value: key, selected: state.sort === key }, `Sort: ${name}`)));
  const cut = from ? h("button", { id: "crop", onclick: () => toggle() }, icon("crop"), state.box ? "Cropped" : "Crop") : null;
  // The same frame stays where it is, under the hand that moves it, while the answers beside it follow.
  const keep = cropping && from && cropping.source === from.src && place.contains(cropping) ? cropping : null;
  const image = keep ? keep.parentElement : h("div.asked", from ? small(from, state) : null);
  toggle = () => {
    if (cropping) {
      cropping = null;
      fill(image, from ? small(from, read()) : null);
      cut?.focus({ preventScroll: true });
    } else if (from) {
      cropping = crop({ ...from, box: read().box, change: (box) => go(address({ ...read(), box, open: "" }), { replace: true }), close: leaveCrop });
      fill(image, cropping);
      cropping.enter();
    }
    place.classList.toggle("cropping", Boolean(cropping));
    cut?.setAttribute("aria-expanded", String(Boolean(cropping)));
  };
  cropping = keep;
  place.classList.toggle("cropping", Boolean(keep));
  cut?.setAttribute("aria-expanded", String(Boolean(keep)));
  const words = h("div.words",
    way(query), verdict(answer, state, act),
    query.kind === "item" ? h("p", `Like ${title(query)} · `, h("bdi", query.columns.path)) : null,
    query.kind === "words" || (info.words && query.kind === "none") ? act.describe(state) : null,
    trays(answer, state),
    h("div.row.tools", facets.chips(state.f, change), info.index.columns.length ? filter : null, cut, sort,
      h("button.quiet", { title: "Copy the link (y)", onclick: copyLink }, icon("link"), h("span.wide", "Link")),
      h("button", { "aria-label": "Another image", onclick: act.choose }, icon("image"), h("span.wide", "Another image"))),
    kept(query));
  if (keep) place.querySelector(".words")?.replaceWith(words);
  else fill(place, from ? image : null, words);
}

function small(from, state) {
  const node = shown(from.src, from.alt);
  if (!state.box) return node;
  const [x1, y1, x2, y2] = state.box.split(",").map(Number);
  node.append(h("i.cut", { "aria-hidden": "true", "--l": `${100 * x1}%`, "--t": `${100 * y1}%`, "--w": `${100 * (x2 - x1)}%`, "--h": `${100 * (y2 - y1)}%` }));
  return node;
}

/** The sentence, the time, and what else must be known. */
function verdict(answer, state, act) {
  const { kind, sentence, detail, note } = answer.verdict;
  const time = h("small", ` · ${Math.max(1, Math.round(answer.milliseconds))} ms`);
  const words = state.box ? sentence.replace(/ in [\d,]+ images?$/, " for the cropped part") : sentence;
  if (!answer.hits.length) return h("h1", { tabindex: -1 }, "Nothing is left", time);
  if (kind === "uncalibrated") {
    return [h("h1", { tabindex: -1 }, "Sorted by similarity.", time),
      note ? h("p", note) : h("p", "This index has no labeled pairs, so there are no percentages. ", action("How to calibrate", howToCalibrate, ".linkish")), indexing()];
  }
  return [h("h1", { tabindex: -1 }, words, kind === "none" ? "." : "", time), detail ? h("p", { class: note ? "rough" : null }, detail) : null,
    indexing(), kind === "none" ? weak(state, act) : null];
}

/** While images still arrive. */
function indexing() {
  const line = h("p.arriving");
  const tell = (moving) => {
    const job = moving?.job?.kind === "index" && moving.job.total ? moving.job : null;
    const left = job?.seconds_left ? `; the rest arrive in about ${job.seconds_left} s.` : "; the rest arrive soon.";
    line.textContent = job ? `Searching ${digits(moving.index.images)} of ${digits(moving.index.images + Math.max(job.total - job.done, 0))} images${left}` : "";
    line.hidden = !job;
  };
  tell(value("moving"));
  const stop = on("moving", (moving) => (line.isConnected || !line.parentNode ? tell(moving) : stop()));
  return line;
}

function kept(query) {
  if (query.kind !== "upload" || !query.id) return null;
  const days = value("info").limits.keep_days;
  const forget = async () => {
    await api.send(`queries/${query.id}`, null, "DELETE");
    api.forgetAnswers();
    toast("Forgotten. The link no longer works.");
    go("/");
  };
  return h("p.kept", `Kept on this server for up to ${days} days so that the link works. `,
    action("Forget now", forget, ".quiet"));
}

export function groups(answer, state, act) {
  if (!answer.hits.length) return nothing(state);
  const make = (hit, n) => cell(hit, {
    href: address({ ...state, open: hit.id }), eager: n < 6, rough: Boolean(answer.verdict.note),
    tools: [["like", "More like this (m)", act.like], ["plus", "More like this too (+)", act.more], ["minus", "Less like this (−)", act.less]]
      .map(([symbol, name, what]) => press(symbol, name, () => what(hit.id), { tabindex: -1 })),
  });
  if (answer.hits[0].group === null) return h("section.group", grid(sorted(answer.hits, state.sort).map(make), { label: "Hits" }));
  return GROUPS.map(([name, words]) => {
    const hits = answer.hits.filter((hit) => hit.group === name);
    if (!hits.length) return null;
    return h("section", { class: `group ${name}` }, h("h2", h("b", words), h("span", String(hits.length))),
      grid(sorted(hits, state.sort).map(make), { label: words, weak: name === "similar" }));
  });
}

function sorted(hits, sort) {
  if (sort === "match") return hits;
  const key = (hit) => (sort === "label" ? readable(hit.columns.label) : sort === "date" ? String(hit.columns.date ?? "") : hit.columns.path ?? hit.id);
  const order = [...hits].sort((a, b) => key(a).localeCompare(key(b), "en-GB", { numeric: true }));
  return sort === "date" ? order.reverse() : order;
}

/** Sixty more, by button or by scrolling there. @param {number} k */
export function more(answer, k, act) {
  const most = value("info").limits.hits;
  if (answer.hits.length >= most) return h("p.empty", `The first ${most} of ${digits(answer.images)}, best first. Filter to see others.`);
  if (answer.hits.length < k) return null;
  const button = action("Show 60 more", () => { button.disabled = true; watch.disconnect(); act.further(); });
  const watch = new IntersectionObserver((seen) => seen.some((entry) => entry.isIntersecting) && button.click(), { rootMargin: "200px" });
  const row = h("div.row.center", button, h("small.kept", `${count(answer.hits.length, "hit")} of all ${digits(answer.images)}`));
  addEventListener("scroll", () => row.isConnected && watch.observe(button), { once: true, passive: true });
  return row;
}
