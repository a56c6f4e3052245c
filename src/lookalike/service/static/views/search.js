// The search screen: the query above, results below.

import * as api from "../api.js";
import { cell, grid, rovingFocus } from "../components/grid.js";
import { GROUPS, title } from "../components/score.js";
import { addPending, chooseFile, localImages, namePending } from "../components/upload.js";
import { actionButton, fill, h, icon, plural, toast } from "../dom.js";
import { hasQuery, historyDepth, navigate, readUrl, savedScroll, searchPath, urlFor } from "../router.js";
import { getState, isTouch, prefersReducedMotion } from "../store.js";

const PAGE = 60;
const view = {
  drawn: "",
  main: document.getElementById("main"),
  answer: null,
  key: "",
  k: PAGE,
  sequence: 0,
  abort: null,
  dialog: null,
};

/**
 * Modules that draw results, loaded after the first view is complete.
 * @type {typeof import("../components/results.js")}
 */
let resultsView = null;
/** @type {typeof import("./compare.js")} */
let compareView = null;
async function loadResultModules() {
  if (!resultsView)
    [resultsView, compareView] = await api.loadModule(() =>
      Promise.all([import("../components/results.js"), import("./compare.js")]),
    );
}

export async function render(main, info, state, how) {
  view.main = main;
  if (!hasQuery(state)) {
    closePair();
    view.abort?.abort();
    view.answer = null;
    view.key = "";
    await drawStart(main, info, state);
    if (how === "back") scrollTo(0, savedScroll());
    return;
  }
  await loadResultModules();
  const key = searchPath(state, 0);
  if (key !== view.key) view.k = PAGE;
  if (key === view.key && view.answer) {
    if (view.drawn !== key + state.sort || !main.querySelector(".screen.search")) draw(state);
  } else {
    if (!(await load(state, (signal) => fetchAnswer(state, view.k, signal)))) return;
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

/** Close the crop frame; whether it was open. */
export const onEscape = () => Boolean(resultsView?.leaveCrop());

/** Arrow keys move into the images when nothing is focused, as right after a search. @param {KeyboardEvent} event */
export function key(event) {
  if (!["ArrowRight", "ArrowLeft", "ArrowDown"].includes(event.key)) return false;
  if (document.activeElement !== document.body && document.activeElement !== view.main) return false;
  const links = [...view.main.querySelectorAll("a.shot")];
  const visible = links.find((link) => link.getBoundingClientRect().top >= 0);
  if (visible instanceof HTMLElement) visible.focus();
  return Boolean(visible);
}

/** Search by a file. @param {File} file */
export async function searchByFile(file) {
  try {
    await loadResultModules();
  } catch (error) {
    return toast(api.messageOf(error));
  }
  addPending(file);
  closePair();
  await upload(file, {
    ...readUrl(),
    screen: "search",
    rest: "",
    like: "",
    q: "pending",
    text: "",
    box: "",
    at: "",
    g: 0,
    more: [],
    less: [],
    open: "",
  });
}

async function upload(file, state) {
  const limit = getState("info")?.limits.upload ?? 2e7;
  const sizes = [file.size, limit].map((size) => `${Math.round(size / 1e6)} MB`);
  const answer = await load(
    state,
    async (signal) => {
      if (file.size > limit) throw new api.ApiError(`This image has ${sizes[0]}; the limit is ${sizes[1]}.`, 413);
      return api.upload(searchPath({ ...state, q: "" }, PAGE), file, signal);
    },
    () => upload(file, state),
  );
  if (!answer) return;
  state.q = answer.query.id ?? `here.${Date.now().toString(36)}`;
  namePending(state.q);
  view.k = PAGE;
  view.key = searchPath(state, 0);
  api.cacheAnswer(searchPath(state, PAGE), answer);
  view.drawn = "";
  navigate(urlFor(state));
  announce();
  scrollTo(0, 0);
}

/**
 * Fetch the answer to a state. An image held by this tab is uploaded again where the server keeps too little of it:
 * nothing, or only a small copy to crop from.
 */
export function fetchAnswer(state, k, signal) {
  const local = localImages.get(state.q);
  const stored = state.q.startsWith("u.");
  return api.get(
    searchPath(state, k),
    signal,
    local && (state.box || !stored)
      ? async () => {
          const answer = await api.upload(`${searchPath({ ...state, q: "" }, k)}&keep=false`, local.file, signal);
          if (stored) answer.query.id = state.q;
          return answer;
        }
      : undefined,
  );
}

/** Fetch an answer while the old one stays visible; outdated answers are dropped. */
async function load(state, fetching, again = () => render(view.main, getState("info"), readUrl(), "push")) {
  const mine = ++view.sequence;
  view.abort?.abort();
  view.abort = new AbortController();
  const head = screenParts(view.main);
  const results = head.results;
  if (state.q === "pending")
    fill(
      head.question,
      resultsView.imageFrame(localImages.get("pending").preview, "Your image"),
      h("div.words", h("h1", "Searching…")),
    );
  else if (!view.answer) fill(head.question, h("div.words", h("h1", "Searching…")));
  const say = (words) => {
    const h1 = head.question.querySelector("h1");
    if (h1 && mine === view.sequence) h1.textContent = words;
  };
  const timers = [
    setTimeout(() => (results.children.length ? results.classList.add("waiting") : fill(results, placeholders())), 150),
    setTimeout(() => say(`Searching ${plural(getState("info")?.index.images ?? 0, "image")}…`), 300),
    setTimeout(() => say("Still searching. The first search after a start loads the model."), 4000),
  ];
  try {
    const answer = await fetching(view.abort.signal);
    if (mine !== view.sequence) return null;
    view.answer = answer;
    return answer;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") return null;
    api.messageOf(error);
    if (mine === view.sequence) showFailure(head, error, again);
    return null;
  } finally {
    for (const timer of timers) clearTimeout(timer);
    if (mine === view.sequence) results.classList.remove("waiting");
  }
}

function showFailure(head, error, again) {
  const other = actionButton("Choose another image", () => chooseFile(searchByFile));
  fill(head.question, h("div.words", h("h1", "That did not work"), resultsView.errorBanner(error, again, other)));
  fill(head.results);
  view.key = "";
  view.answer = null;
}

/** The two parts of the screen, created if missing. */
function screenParts(main) {
  let screen = main.querySelector(".screen.search");
  if (!screen) {
    screen = h("div.screen.search", h("section.question", { "aria-label": "Your question" }), h("div.results"));
    fill(main, screen);
  }
  return { question: screen.children[0], results: screen.children[1] };
}

const placeholders = () =>
  h(
    "div.bones",
    { "aria-hidden": "true" },
    Array.from({ length: 8 }, () => h("i")),
  );

async function drawStart(main, info, state) {
  if (state.f.length) await loadResultModules();
  const images = h("div", placeholders());
  const drop = h(
    "button.ask",
    { onclick: () => chooseFile(searchByFile) },
    icon("image"),
    h(
      "span",
      h("strong", isTouch() ? "Choose an image or take one" : "Drop an image, paste it or choose one"),
      h("span", `to find its lookalikes among ${plural(info.index.images, "image")}`),
    ),
  );
  const words = info.text ? textSearchForm(state) : null;
  const heading = h(
    "h1.lead",
    state.f.length ? "or start from one of the filtered images" : "or start from one of these",
  );
  fill(main, h("div.screen", drop, words, state.f.length ? resultsView.filterChips(state) : null, heading, images));
  const query = new URLSearchParams([["sample", "24"], ...state.f.map((f) => ["f", f])]);
  const { items } = await api.get(`items?${query}`);
  if (hasQuery(readUrl()) || readUrl().screen !== "search") return;
  fill(
    images,
    items.length
      ? grid(
          items.map((item, n) =>
            cell(item, { href: urlFor({ like: item.id, f: state.f }), eager: n < 8, plain: true }),
          ),
          { label: "Images to start from", weak: true },
        )
      : h("p.empty", state.f.length ? "No image matches these filters." : "There are no images here yet."),
  );
  rovingFocus(images);
  loadResultModules().catch(api.messageOf);
}

/** The form for text queries. @param {import("../router.js").State} state */
export function textSearchForm(state) {
  const field = h("input", {
    type: "search",
    value: state.text,
    placeholder: "or describe it",
    "aria-label": "Describe what you look for",
  });
  return h(
    "form.describe",
    {
      role: "search",
      onsubmit: (event) => {
        event.preventDefault();
        if (field.value.trim()) navigate(urlFor({ text: field.value.trim(), f: state.f, sort: state.sort }));
      },
    },
    field,
    h("button", { type: "submit" }, "Search"),
  );
}

function draw(state) {
  const head = screenParts(view.main);
  view.drawn = searchPath(state, 0) + state.sort;
  const act = {
    ...actions(state),
    choose: () => chooseFile(searchByFile),
    further: () => loadMore(state),
    describe: textSearchForm,
    ask: fetchAnswer,
  };
  resultsView.drawHeader(head.question, view.answer, state, act);
  fill(head.results, resultsView.hitGroups(view.answer, state, act), resultsView.moreButton(view.answer, view.k, act));
  rovingFocus(head.results);
}

async function loadMore(state) {
  view.k = Math.min(view.k + PAGE, getState("info").limits.hits);
  if (await load(state, (signal) => fetchAnswer(state, view.k, signal))) draw(state);
}

// On phones the query shrinks to a strip while scrolling; two thresholds prevent flicker.
addEventListener(
  "scroll",
  () => {
    const place = view.main.querySelector(".search .question");
    if (place && (scrollY > 320 || scrollY < 60)) place.classList.toggle("small", scrollY > 320 && innerWidth <= 640);
  },
  { passive: true },
);

/** Announce the result to screen readers. */
function announce() {
  const { hits, verdict } = view.answer;
  const counts = GROUPS.map(([name, words]) => [hits.filter((hit) => hit.group === name).length, words])
    .filter(([number]) => number)
    .map(([number, words]) => `${number} ${String(words).toLowerCase()}`);
  const place = document.getElementById("announce");
  if (place) place.textContent = `${verdict.message}. ${counts.join(", ")}`;
}

/** Actions on a hit. */
export function actions(state) {
  const add = (name) => (id) => {
    if (name === "less" && !hasQuery(state)) return toast("Add an image to search for first.");
    if (!state[name].includes(id))
      navigate(urlFor({ ...state, screen: "search", rest: "", at: "", open: "", [name]: [...state[name], id] }));
  };
  const step = (id) => {
    const hit = view.answer?.hits.find((one) => one.id === id);
    return hit && { id, thumb: hit.thumb, name: title(hit) };
  };
  return {
    like: (id) => navigate(urlFor({ like: id, f: state.f, sort: state.sort }), { step: step(id) }),
    more: add("more"),
    less: add("less"),
    map: (id) => navigate(urlFor({ screen: "map", like: id })),
    crop: () => resultsView?.enterCrop(),
  };
}

function showPair(state) {
  const before = view.dialog;
  if (!state.open || !view.answer)
    return (
      before && animateOpen(before.querySelector("figure:last-child img"), () => readUrl().open || closePair(true))
    );
  const show = (id) => navigate(urlFor({ ...state, open: id }), { replace: true });
  const close = () => (historyDepth() ? history.back() : navigate(urlFor({ ...state, open: "" }), { replace: true }));
  const dialog = compareView.compareDialog(view.answer, state, { ...actions(state), show, close });
  if (!dialog) return closePair(true);
  if (before?.classList.contains("swapped")) dialog.classList.add("swapped");
  const open = () => {
    closePair();
    if (readUrl().open !== state.open) return;
    view.dialog = dialog;
    document.body.append(dialog);
    dialog.showModal();
    dialog.focus(); // not its first button: Space means "swap" here
  };
  if (before) open();
  else animateOpen(cellOf(state.open)?.firstElementChild, open);
}

/** Animate opening and closing an image, unless reduced motion is preferred. */
function animateOpen(from, change) {
  if (!document.startViewTransition || prefersReducedMotion() || !from) return change();
  const name = (image, to) => image?.style.setProperty("view-transition-name", to);
  const id = view.dialog?.dataset.open;
  name(from, "opened");
  const shown = document.startViewTransition(() => {
    name(from, "none");
    change();
    name(view.dialog ? view.dialog.querySelector("figure:last-child img") : cellOf(id)?.firstElementChild, "opened");
  });
  shown.ready.catch(() => {}); // the transition was skipped; the change is applied anyway
  shown.finished.then(() => name(cellOf(id)?.firstElementChild, "none"));
}

/** The grid's link to an image. @param {string} id @returns {HTMLElement | null} */
const cellOf = (id) => (id ? document.querySelector(`a.shot[data-id="${CSS.escape(id)}"]`) : null);

function closePair(refocus = false) {
  if (!view.dialog) return;
  const id = view.dialog.dataset.open;
  view.dialog.close();
  view.dialog.remove();
  view.dialog = null;
  if (refocus && id) cellOf(id)?.focus({ preventScroll: true });
}
