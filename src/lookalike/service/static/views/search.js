// The search screen: a question above, answers below.

import * as api from "../api.js";
import { action, count, fill, h, icon, toast } from "../dom.js";
import { cell, grid, roving } from "../parts/grid.js";
import { call, choose, hand, hold } from "../parts/intake.js";
import { GROUPS, title } from "../parts/score.js";
import { address, asks, depth, go, question, read, savedScroll } from "../router.js";
import { calm, touch, value } from "../store.js";


const PAGE = 60;
const view = { drawn: "", main: document.getElementById("main"), answer: null, key: "", k: PAGE, sequence: 0, abort: null, dialog: null };

/** What draws answers, fetched when the first view is there and nothing else is to be done. @type {any} */
let answers = null;
let pairs = null;
async function ready() {
  if (!answers) [answers, pairs] = await api.part(() => Promise.all([import("../parts/answer.js"), import("./pair.js")]));
}

export async function render(main, info, state, how) {
  view.main = main;
  if (!asks(state)) {
    closePair();
    view.abort?.abort();
    view.answer = null;
    view.key = "";
    await mosaic(main, info, state);
    if (how === "back") scrollTo(0, savedScroll());
    return;
  }
  await ready();
  const key = question(state, 0);
  if (key !== view.key) view.k = PAGE;
  if (key === view.key && view.answer) {
    if (view.drawn !== key + state.sort || !main.querySelector(".screen.search")) draw(state);
  } else {
    if (!await load(state, (signal) => ask(state, view.k, signal))) return;
    view.key = key;
    draw(state);
    announce();
    if (how !== "replace") scrollTo(0, how === "back" ? savedScroll() : 0);
  }
  showPair(state);
}

export function leave() {
  closePair();
  view.abort?.abort();
}

/** Close what is open; whether there was something. */
export const escape = () => Boolean(answers?.leaveCrop());

/** Search by a file. @param {File} file */
export async function take(file) {
  const limit = value("info")?.limits.upload ?? 2e7;
  if (file.size > limit) {
    return toast(`This image has ${Math.round(file.size / 1e6)} MB; the limit here is ${Math.round(limit / 1e6)} MB.`);
  }
  try {
    await ready();
  } catch (error) {
    return toast(api.said(error));
  }
  hold(file);
  closePair();
  await upload(file, { ...read(), screen: "search", rest: "", like: "", q: "pending", text: "", box: "", at: "", g: 0, more: [], less: [], open: "" });
}

async function upload(file, state) {
  const answer = await load(state, (signal) => api.upload(question({ ...state, q: "" }, PAGE), file, signal), () => upload(file, state));
  if (!answer) return;
  state.q = answer.query.id ?? `here.${Date.now().toString(36)}`;
  call(state.q);
  view.k = PAGE;
  view.key = question(state, 0);
  api.remember(question(state, PAGE), answer);
  view.drawn = "";
  go(address(state));
  announce();
  scrollTo(0, 0);
}

/** By the address; an image in hand goes itself where the server keeps too little of it: nothing, or a small copy to cut a part from. */
export function ask(state, k, signal) {
  const held = hand.get(state.q);
  const kept = state.q.startsWith("u.");
  return api.get(question(state, k), signal, held && (state.box || !kept) ? async () => {
    const answer = await api.upload(`${question({ ...state, q: "" }, k)}&keep=false`, held.file, signal);
    if (kept) answer.query.id = state.q;
    return answer;
  } : undefined);
}

/** Fetch an answer while the old one stays; late answers are dropped. */
async function load(state, fetching, again = () => render(view.main, value("info"), read(), "push")) {
  const mine = ++view.sequence;
  view.abort?.abort();
  view.abort = new AbortController();
  const head = frameOf(view.main);
  const results = head.results;
  if (state.q === "pending") fill(head.question, answers.shown(hand.get("pending").preview, "Your image"), h("div.words", h("h1", "Looking…")));
  else if (!view.answer) fill(head.question, h("div.words", h("h1", "Looking…")));
  const say = (words) => {
    const h1 = head.question.querySelector("h1");
    if (h1 && mine === view.sequence) h1.textContent = words;
  };
  const timers = [
    setTimeout(() => (results.children.length ? results.classList.add("waiting") : fill(results, bones())), 150),
    setTimeout(() => say(`Searching ${count(value("info")?.index.images ?? 0, "image")}…`), 300),
    setTimeout(() => say("Still searching. The first search after a start loads the model."), 4000),
  ];
  try {
    const answer = await fetching(view.abort.signal);
    if (mine !== view.sequence) return null;
    view.answer = answer;
    return answer;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") return null;
    api.said(error);
    if (mine === view.sequence) failed(head, error, again);
    return null;
  } finally {
    for (const timer of timers) clearTimeout(timer);
    if (mine === view.sequence) results.classList.remove("waiting");
  }
}

function failed(head, error, again) {
  const other = action("Choose another image", () => choose(take));
  fill(head.question, h("div.words", h("h1", "That did not work"), answers.failure(error, again, other)));
  fill(head.results);
  view.key = "";
  view.answer = null;
}

/** The two parts of the screen, made when they are not there. */
function frameOf(main) {
  let screen = main.querySelector(".screen.search");
  if (!screen) {
    screen = h("div.screen.search", h("section.question", { "aria-label": "Your question" }), h("div.results"));
    fill(main, screen);
  }
  return { question: screen.children[0], results: screen.children[1] };
}

const bones = () => h("div.bones", { "aria-hidden": "true" }, Array.from({ length: 8 }, () => h("i")));

async function mosaic(main, info, state) {
  if (state.f.length) await ready();
  const images = h("div", bones());
  const drop = h("button.ask", { onclick: () => choose(take) }, icon("image"),
    h("span", h("strong", touch() ? "Choose an image or take one" : "Drop an image, paste it or choose one"),
      h("span", `to find its lookalikes among ${count(info.index.images, "image")}`)));
  const words = info.words ? describe(state) : null;
  const heading = h("h1.lead", state.f.length ? "or start from one of those that were chosen" : "or start from one of these");
  fill(main, h("div.screen", drop, words, state.f.length ? answers.chips(state) : null, heading, images));
  const query = new URLSearchParams([["sample", "24"], ...state.f.map((f) => ["f", f])]);
  const { items } = await api.get(`items?${query}`);
  if (asks(read()) || read().screen !== "search") return;
  fill(images, items.length ? grid(items.map((item, n) =>
    cell(item, { href: address({ like: item.id, f: state.f }), eager: n < 8, plain: true })), { label: "Images to start from", weak: true })
    : h("p.empty", state.f.length ? "No image is left by these filters." : "There are no images here yet."));
  roving(images);
  ready().catch(api.said);
}

/** Words, where the model reads them. @param {State} state */
export function describe(state) {
  const field = h("input", { type: "search", value: state.text, placeholder: "or describe it", "aria-label": "Describe what you look for" });
  return h("form.describe", { role: "search", onsubmit: (event) => {
    event.preventDefault();
    if (field.value.trim()) go(address({ text: field.value.trim(), f: state.f, sort: state.sort }));
  } }, field, h("button", { type: "submit" }, "Search"));
}

function draw(state) {
  const head = frameOf(view.main);
  view.drawn = question(state, 0) + state.sort;
  const act = { ...actions(state), choose: () => choose(take), further: () => further(state), describe, ask };
  answers.head(head.question, view.answer, state, act);
  fill(head.results, answers.groups(view.answer, state, act), answers.more(view.answer, view.k, act));
  roving(head.results);
}

async function further(state) {
  view.k = Math.min(view.k + PAGE, value("info").limits.hits);
  if (await load(state, (signal) => ask(state, view.k, signal))) draw(state);
}

// A phone's question shrinks to a strip while one scrolls; two marks against flicker.
addEventListener("scroll", () => {
  const place = view.main.querySelector(".search .question");
  if (place && (scrollY > 320 || scrollY < 60)) place.classList.toggle("small", scrollY > 320 && innerWidth <= 640);
}, { passive: true });

/** Tell screen readers what came back. */
function announce() {
  const { hits, verdict } = view.answer;
  const counts = GROUPS.map(([name, words]) => [hits.filter((hit) => hit.group === name).length, words])
    .filter(([number]) => number).map(([number, words]) => `${number} ${String(words).toLowerCase()}`);
  const place = document.getElementById("announce");
  if (place) place.textContent = `${verdict.sentence}. ${counts.join(", ")}`;
}

/** What can be done with a hit. */
export function actions(state) {
  const add = (name) => (id) => {
    if (name === "less" && !asks(state)) return toast("Add one image to look for first.");
    if (!state[name].includes(id)) go(address({ ...state, screen: "search", rest: "", at: "", open: "", [name]: [...state[name], id] }));
  };
  const step = (id) => {
    const hit = view.answer?.hits.find((one) => one.id === id);
    return hit && { id, thumb: hit.thumb, name: title(hit) };
  };
  return {
    like: (id) => go(address({ like: id, f: state.f, sort: state.sort }), { step: step(id) }),
    more: add("more"), less: add("less"),
    map: (id) => go(address({ screen: "map", like: id })),
    crop: () => answers?.enterCrop(),
  };
}

function showPair(state) {
  const before = view.dialog;
  if (!state.open || !view.answer) return before && grow(before.querySelector("figure:last-child img"), () => read().open || closePair(true));
  const show = (id) => go(address({ ...state, open: id }), { replace: true });
  const close = () => (depth() ? history.back() : go(address({ ...state, open: "" }), { replace: true }));
  const dialog = pairs.pair(view.answer, state, { ...actions(state), show, close });
  if (!dialog) return closePair(true);
  if (before?.classList.contains("swapped")) dialog.classList.add("swapped");
  const open = () => {
    closePair();
    if (read().open !== state.open) return;
    view.dialog = dialog;
    document.body.append(dialog);
    dialog.showModal();
    dialog.focus(); // not its first button: Space means "swap" here
  };
  if (before) open();
  else grow(cellOf(state.open)?.firstElementChild, open);
}

/** An opened image grows from its cell and back, unless somebody asked for calm. */
function grow(from, change) {
  if (!document.startViewTransition || calm() || !from) return change();
  const name = (image, to) => image?.style.setProperty("view-transition-name", to);
  const id = view.dialog?.dataset.open;
  name(from, "opened");
  const shown = document.startViewTransition(() => {
    name(from, "none");
    change();
    name(view.dialog ? view.dialog.querySelector("figure:last-child img") : cellOf(id)?.firstElementChild, "opened");
  });
  shown.ready.catch(() => {}); // skipped: the change itself is made all the same
  shown.finished.then(() => name(cellOf(id)?.firstElementChild, "none"));
}

const cellOf = (id) => id ? document.querySelector(`a.shot[data-id="${CSS.escape(id)}"]`) : null;

function closePair(refocus = false) {
  if (!view.dialog) return;
  const id = view.dialog.dataset.open;
  view.dialog.close();
  view.dialog.remove();
  view.dialog = null;
  if (refocus && id) cellOf(id)?.focus({ preventScroll: true });
}
