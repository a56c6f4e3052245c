// The search screen: a question above, answers below.

import * as api from "../api.js";
import { count, fill, h, icon, readable, toast } from "../dom.js";
import * as facets from "../parts/facets.js";
import { cell, grid, roving, tool } from "../parts/grid.js";
import { choose } from "../parts/intake.js";
import { GROUPS, title } from "../parts/score.js";
import { address, asks, depth, go, question, read, savedScroll } from "../router.js";
import { pair } from "./pair.js";

const PAGE = 60;
/** @type {{info: any, main: HTMLElement, answer: any, key: string, k: number, sequence: number, abort: AbortController | null, preview: string, dialog: any, drawn: string}} */
const view = { drawn: "", info: null, main: document.body, answer: null, key: "", k: PAGE, sequence: 0, abort: null, preview: "", dialog: null };

/** @param {HTMLElement} main @param {any} info @param {import("../router.js").State} state @param {string} how */
export async function render(main, info, state, how) {
  view.main = main;
  view.info = info;
  document.title = "lookalike";
  if (!asks(state)) {
    closePair();
    view.abort?.abort();
    view.answer = null;
    view.key = "";
    await mosaic(main);
    if (how === "back") scrollTo(0, savedScroll());
    return;
  }
  const key = question(state, 0);
  if (key !== view.key) view.k = PAGE;
  const address_ = question(state, view.k);
  if (key === view.key && view.answer) {
    if (view.drawn !== key + state.sort || !main.querySelector(".screen.search")) draw(state);
  } else {
    if (!await load(state, () => api.get(address_, view.abort?.signal))) return;
    view.key = key;
    draw(state);
    announce();
    scrollTo(0, how === "back" ? savedScroll() : 0);
  }
  showPair(state);
}

/** Search by a file. @param {File} file */
export async function take(file) {
  const limit = view.info?.limits.upload ?? 2e7;
  if (file.size > limit) {
    toast(`This picture has ${Math.round(file.size / 1e6)} MB; the limit here is ${Math.round(limit / 1e6)} MB.`);
    return;
  }
  if (view.preview) URL.revokeObjectURL(view.preview);
  view.preview = URL.createObjectURL(file);
  closePair();
  const state = { ...read(location), screen: "search", like: "", q: "pending", more: [], less: [], open: "" };
  const query = new URLSearchParams([["k", String(PAGE)], ...state.f.map((f) => ["f", f])]);
  const answer = await load(state, () => api.upload(`/api/v1/search?${query}`, file, view.abort?.signal ?? new AbortController().signal));
  if (!answer) return;
  answer.query.preview = view.preview;
  state.q = answer.query.id ?? "here";
  view.k = PAGE;
  view.key = question(state, 0);
  api.remember(question(state, PAGE), answer);
  view.drawn = "";
  go(address(state));
  announce();
  scrollTo(0, 0);
}

/** Fetch an answer while the old one stays; late answers are dropped. @param {any} state @param {() => Promise<any>} ask */
async function load(state, ask) {
  const mine = ++view.sequence;
  view.abort?.abort();
  view.abort = new AbortController();
  const head = frameOf(view.main);
  const results = head.results;
  if (state.q === "pending") fill(head.question, shown(view.preview, "Your picture"), h("div", { class: "words" }, h("h1", null, "Looking…")));
  else if (!view.answer) fill(head.question, h("div", { class: "words" }, h("h1", null, "Looking…")));
  const say = (/** @type {string} */ words) => {
    const h1 = head.question.querySelector("h1");
    if (h1 && mine === view.sequence) h1.textContent = words;
  };
  const timers = [
    setTimeout(() => (results.children.length ? results.classList.add("waiting") : fill(results, bones())), 150),
    setTimeout(() => say(`Searching ${count(view.info?.index.pictures ?? 0, "picture")}…`), 300),
    setTimeout(() => say("Still searching. The first search after a start loads the model."), 4000),
  ];
  try {
    const answer = await ask();
    if (mine !== view.sequence) return null;
    view.answer = answer;
    return answer;
  } catch (error) {
    if (mine === view.sequence && !(error instanceof DOMException)) failed(head, error, () => load(state, ask).then((a) => a && render(view.main, view.info, read(location), "push")));
    return null;
  } finally {
    for (const timer of timers) clearTimeout(timer);
    if (mine === view.sequence) results.classList.remove("waiting");
  }
}

/** @param {any} head @param {any} error @param {() => void} again */
function failed(head, error, again) {
  const wait = error.retry || 0;
  const banner = h("div", { class: "banner bad", role: "alert" }, h("span", null, error.message));
  if (wait) {
    const timer = setTimeout(again, wait * 1000);
    const now = h("button", { type: "button", onclick: () => { clearTimeout(timer); again(); } }, "Now");
    banner.append(h("span", null, `Trying again in ${wait} s.`), now);
  } else {
    banner.append(h("button", { type: "button", onclick: () => choose(take) }, "Choose another picture"));
  }
  fill(head.question, h("div", { class: "words" }, h("h1", null, "That did not work"), banner));
  fill(head.results);
  view.key = "";
}

/** The two parts of the screen, made when they are not there. @param {HTMLElement} main */
function frameOf(main) {
  let screen = main.querySelector(".screen.search");
  if (!screen) {
    screen = h("div", { class: "screen search" }, h("section", { class: "question", "aria-label": "Your question" }),
      h("div", { class: "results" }));
    fill(main, screen);
  }
  return { question: /** @type {HTMLElement} */ (screen.children[0]), results: /** @type {HTMLElement} */ (screen.children[1]) };
}

const bones = () => h("div", { class: "bones", "aria-hidden": "true" }, Array.from({ length: 8 }, () => h("i")));
const shown = (/** @type {string} */ src, /** @type {string} */ alt) => h("div", { class: "shown" }, h("img", { src, alt }));

/** @param {HTMLElement} main */
async function mosaic(main) {
  const pictures = h("div", null, bones());
  const drop = h("button", { type: "button", class: "ask", onclick: () => choose(take) }, icon("picture"),
    h("span", null, h("strong", null, matchMedia("(hover: none)").matches ? "Choose a picture or take one" : "Drop a picture, paste it or choose one"),
      h("span", null, view.info ? `to find its lookalikes among ${count(view.info.index.pictures, "picture")}` : "")));
  const heading = h("h1", { class: "lead" }, "or start from one of these");
  fill(main, h("div", { class: "screen" }, drop, heading, pictures));
  const { items } = await api.get("/api/v1/items?sample=24");
  if (asks(read(location))) return;
  fill(pictures, grid(items.map((/** @type {any} */ item, /** @type {number} */ n) =>
    cell(item, { href: address({ like: item.id }), eager: n < 8, plain: true })), { label: "Pictures to start from", weak: true }));
  roving(pictures);
}

/** @param {import("../router.js").State} state */
function draw(state) {
  const answer = view.answer;
  const head = frameOf(view.main);
  view.drawn = question(state, 0) + state.sort;
  const change = (/** @type {string[]} */ f) => go(address({ ...read(location), f, open: "" }));
  const { query, verdict } = answer;
  const picture = query.kind === "item" ? shown(api.thumb(query.thumb, 512), title(query))
    : query.preview ?? query.id ? shown(query.preview ?? api.queryPicture(query.id), "Your picture") : null;
  const time = h("small", null, ` ${Math.max(1, Math.round(answer.milliseconds))} ms`);
  const columns = view.info.index.columns.filter((/** @type {string} */ c) => c !== "path");
  const filter = h("button", { type: "button", id: "filters", onclick: () => facets.open(columns, read(location).f, change) }, icon("filter"), "Filter");
  const sort = h("select", { "aria-label": "Sort", onchange: (/** @type {any} */ e) => go(address({ ...state, sort: e.target.value }), { replace: true }) },
    [["match", "Sort: match"], ["label", "Sort: label"], ["name", "Sort: name"]].map(([value, name]) =>
      h("option", { value, selected: state.sort === value }, name)));
  fill(head.question, picture, h("div", { class: "words" },
    h("h1", { tabindex: -1 }, verdict.sentence, time),
    verdict.detail ? h("p", { class: verdict.note ? "rough" : null }, verdict.detail) : null,
    query.kind === "item" ? h("p", null, `Like ${readable(query.columns.label) || ""} `, h("bdi", null, query.columns.path)) : null,
    trays(answer, state),
    h("div", { class: "row" }, facets.chips(state.f, change), columns.length ? filter : null, sort,
      h("button", { type: "button", "aria-label": "Another picture", onclick: () => choose(take) }, icon("picture"), h("span", { class: "wide" }, "Another picture"))),
    kept(query)));
  fill(head.results, groups(answer, state), more(answer, state));
  roving(head.results);
}

/** Tell screen readers what came back. */
function announce() {
  const { hits, verdict } = view.answer;
  const counts = GROUPS.map(([name, words]) => [hits.filter((/** @type {any} */ hit) => hit.group === name).length, words])
    .filter(([number]) => number).map(([number, words]) => `${number} ${String(words).toLowerCase()}`);
  const place = document.getElementById("announce");
  if (place) place.textContent = `${verdict.sentence}. ${counts.join(", ")}`;
}

/** @param {any} answer @param {any} state */
function trays(answer, state) {
  const rows = [["more", "more like"], ["less", "less like"]].map(([name, words]) => {
    const items = answer[name] ?? [];
    if (!items.length) return null;
    const drop = (/** @type {string} */ id) => go(address({ ...state, open: "", [name]: state[name].filter((/** @type {string} */ x) => x !== id) }));
    return h("span", { class: "tray" }, words, items.map((/** @type {any} */ item) =>
      h("button", { type: "button", title: "Take away", "aria-label": `Take away ${title(item)}`, onclick: () => drop(item.id) },
        h("img", { src: api.thumb(item.thumb, 96), alt: "" }), h("span", null, icon("close")))));
  });
  return rows.some(Boolean) ? h("div", { class: "trays" }, rows) : null;
}

/** @param {any} query */
function kept(query) {
  if (query.kind !== "upload" || !query.id) return null;
  const days = view.info.limits.keep_days;
  const forget = async () => {
    await api.forget(query.id);
    api.forgetAnswers();
    toast("Forgotten. The link no longer works.");
    go("/");
  };
  return h("p", { class: "kept" }, `Kept on this server for ${days} days so that the link works. `,
    h("button", { type: "button", class: "quiet", onclick: forget }, "Forget now"));
}

/** @param {any} answer @param {any} state */
function groups(answer, state) {
  if (!answer.hits.length) return nothing(state);
  const act = actions(state);
  const make = (/** @type {any} */ hit, /** @type {number} */ n) => cell(hit, {
    href: address({ ...state, open: hit.id }), eager: n < 6,
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

/** @param {any} state */
function nothing(state) {
  if (!state.f.length) return h("p", { class: "empty" }, "Nothing found.");
  const words = state.f.map((/** @type {string} */ f) => facets.parts(f)).map((/** @type {any} */ p) => `${p.column}: ${readable(p.value)}`);
  const clear = () => go(address({ ...state, f: [], open: "" }));
  return h("div", { class: "empty" }, h("p", null, `No picture has ${words.join(" and ")}.`),
    h("p", null, h("button", { type: "button", onclick: clear }, "Search without filters")));
}

/** @param {any[]} hits @param {string} sort */
function sorted(hits, sort) {
  if (sort === "match") return hits;
  const key = (/** @type {any} */ hit) => (sort === "label" ? readable(hit.columns.label) : hit.columns.path ?? hit.id);
  return [...hits].sort((a, b) => key(a).localeCompare(key(b), "en-GB", { numeric: true }));
}

/** @param {any} answer @param {any} state */
function more(answer, state) {
  if (answer.hits.length < view.k || view.k >= view.info.limits.hits) return null;
  const next = async () => {
    view.k += PAGE;
    if (await load(state, () => api.get(question(state, view.k), view.abort?.signal))) draw(state);
  };
  return h("div", { class: "row" }, h("button", { type: "button", onclick: next }, `Show ${PAGE} more`));
}

/** What can be done with a hit. @param {any} state */
export function actions(state) {
  const add = (/** @type {string} */ name) => (/** @type {string} */ id) =>
    state[name].includes(id) || go(address({ ...state, open: "", [name]: [...state[name], id] }));
  return { like: (/** @type {string} */ id) => go(address({ like: id, f: state.f, sort: state.sort })), more: add("more"), less: add("less") };
}

/** @param {any} state */
function showPair(state) {
  const before = view.dialog;
  closePair(!state.open);
  if (!state.open || !view.answer) return;
  const show = (/** @type {string} */ id) => go(address({ ...state, open: id }), { replace: true });
  const close = () => (depth() ? history.back() : go(address({ ...state, open: "" }), { replace: true }));
  view.dialog = pair(view.answer, state.open, { ...actions(state), show, close, originals: view.info?.originals, metadata: view.info?.metadata });
  if (!view.dialog) return;
  if (before?.classList.contains("swapped")) view.dialog.classList.add("swapped");
  document.body.append(view.dialog);
  view.dialog.showModal();
  view.dialog.focus(); // not its first button: Space means "swap" here
}

function closePair(refocus = false) {
  if (!view.dialog) return;
  const id = view.dialog.dataset.open;
  view.dialog.close();
  view.dialog.remove();
  view.dialog = null;
  if (refocus && id) document.querySelector(`a.shot[data-id="${CSS.escape(id)}"]`)?.focus({ preventScroll: true });
}
