// Entry point of the page: screens, keyboard shortcuts and the server's status.

import * as api from "./api.js";
import { chooseFile, watchDropAndPaste } from "./components/upload.js";
import { actionButton, fill, h, plural, toast, withErrorToast } from "./dom.js";
import { currentIndex, historyDepth, navigate, readUrl, setIndex, startRouter } from "./router.js";
import { applyPreferences, getState, preference, setPreference, setState } from "./store.js";

const main = document.getElementById("main");
/**
 * The screens, loaded on first use. Each exports `render(main, info, state, how)` and optionally `leave`, `key`,
 * `onEscape` and `current`.
 */
const VIEWS = {
  search: () => import("./views/search.js"),
  browse: () => import("./views/browse.js"),
  map: () => import("./views/map.js"),
  duplicates: () => import("./views/duplicates.js"),
  reports: () => import("./views/reports.js"),
  runs: () => import("./views/runs.js"),
  settings: () => import("./views/settings.js"),
  api: () => import("./views/api_docs.js"),
};
const dialogs = () => import("./components/dialogs.js");
const askForKey = async () => (await dialogs()).askForKey();

/** A banner for an error; a plain paragraph if the banner's module cannot be loaded. */
async function errorBanner(error, again) {
  try {
    return (await import("./components/messages.js")).errorBanner(
      error,
      again,
      error.status === 401 && actionButton("Enter a key", askForKey),
    );
  } catch {
    setTimeout(again, 4000);
    return h("p.empty", { role: "alert" }, error.message);
  }
}

/** Search by an image file. @param {File} file */
const searchByFile = withErrorToast(async (file) => (await api.loadModule(VIEWS.search)).searchByFile(file));

let currentView = {};

async function boot() {
  try {
    VIEWS[readUrl().screen]().catch(() => {}); // start loading now; errors are reported when it is rendered
    await chooseIndex();
    setState({ info: await api.getFresh("info") });
    showStatus("on", plural(getState("info").index.images, "image"));
    startRouter(render);
    pollStatus();
  } catch (error) {
    const { status } = error;
    const locked = status === 401;
    showStatus("off", locked ? "Locked" : "Offline");
    fill(
      main,
      h(
        "div.screen",
        h("h1.unseen", "lookalike"),
        await errorBanner({ message: api.messageOf(error), status, retry: locked ? 0 : 4 }, boot),
      ),
    );
  }
}

/** The names of the indexes of this server, the first is the default. @type {string[]} */
let indexes = [];
/** Address the index that the URL names; with several, list them in the header. */
async function chooseIndex() {
  const { index } = readUrl();
  const answer = api.getFresh("/api/v1/indexes").then((list) => {
    indexes = list.indexes.map((one) => one.name);
    const select = document.getElementById("index");
    if (!(select instanceof HTMLSelectElement) || indexes.length < 2) return;
    const shown = indexes.includes(index) ? index : indexes[0];
    fill(
      select,
      indexes.map((name) => h("option", { value: name, selected: name === shown }, name)),
    );
    select.hidden = false;
    select.addEventListener("change", () =>
      location.assign(select.value === indexes[0] ? "/" : `/?index=${encodeURIComponent(select.value)}`),
    );
  });
  if (!index) return void answer.catch(api.messageOf);
  await answer;
  if (indexes.indexOf(index) > 0) {
    api.useIndex(index);
    setIndex(index);
  }
}

/** Set the status indicator in the header. */
function showStatus(kind, words) {
  document.querySelector("#status .dot").className = `dot ${kind}`;
  document.getElementById("status-text").textContent = words;
}

/** Poll the server's state and publish it as `status`. */
function pollStatus() {
  api.poll(
    "state",
    async (status) => {
      const before = getState("info").index;
      if (["name", "generation", "updated", "images"].some((name) => before[name] !== status.index[name])) {
        api.clearCache(); // they belong to another state of the index or another model
        setState({ info: await api.getFresh("info") });
      }
      const info = getState("info");
      setState({ status, info: { ...info, index: { ...info.index, complete: status.index.complete } } });
      const job = status.job;
      const share = job?.total ? ` ${Math.floor((100 * job.done) / job.total)} %` : "…";
      showStatus(job ? "busy" : "on", job ? `${job.phase || job.title}${share}` : plural(status.index.images, "image"));
    },
    (status) => (status.job ? 1000 : 5000),
    () => showStatus("off", "Offline"),
  );
}

async function render(state, how) {
  for (const link of document.querySelectorAll("#screens a")) {
    const own =
      link.getAttribute("data-screen") === state.screen ||
      (link.classList.contains("phone") && ["settings", "api"].includes(state.screen));
    if (own) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const info = getState("info");
  const draw = async () => {
    const next = await api.loadModule(VIEWS[state.screen]);
    if (next !== currentView) {
      currentView.leave?.();
      scrollTo(0, 0);
    }
    currentView = next;
    await next.render(main, info, state, how);
  };
  const name =
    state.screen === "api"
      ? "API"
      : (state.screen === "runs" && state.rest) || state.screen[0].toUpperCase() + state.screen.slice(1);
  document.title = state.screen === "search" ? "lookalike" : `${name} · lookalike`;
  document.body.dataset.screen = state.screen;
  const shown = currentIndex() || indexes[0];
  if (shown && indexes.includes(state.index || indexes[0]) && (state.index || indexes[0]) !== shown)
    return location.reload(); // back to another index
  if (state.index && state.index !== info.index.name && state.index !== shown) {
    fill(
      main,
      h(
        "div.screen",
        h("h1", "Another index"),
        h("div.banner.bad", { role: "alert" }, `This link belongs to index ${state.index}.`),
      ),
    );
    return;
  }
  try {
    await draw();
  } catch (error) {
    if (!(error instanceof api.ApiError)) throw error;
    fill(main, h("div.screen", h("h1", "That did not work"), await errorBanner(error, () => render(readUrl(), how))));
  }
}

// An image that was refused (server busy or restarting) is requested a few more times with growing delays.
document.addEventListener(
  "error",
  ({ target }) => {
    if (!(target instanceof HTMLImageElement)) return;
    const tries = Number(target.dataset.tries ?? 0);
    if (tries > 4) return;
    target.dataset.tries = String(tries + 1);
    const source = target.src;
    const reload = () => {
      if (target.isConnected) target.src = source;
    };
    setTimeout(reload, 1000 * (1 + Math.random()) * 2 ** tries);
  },
  true,
);

let pendingKey = "";

/** Whether an element takes typed characters. @param {EventTarget | null} target */
function isTyping(target) {
  if (target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement) return true;
  return target instanceof HTMLInputElement && target.type !== "checkbox";
}

/** The image that a shortcut applies to: compared, focused, or on the map's card. */
function currentImage(dialog, target, state) {
  if (dialog?.classList.contains("pair") && state.open) return state.open;
  const focused = target instanceof Element && target.getAttribute("data-id");
  return focused || (state.screen === "map" && currentView.current?.()) || "";
}

/** Make images one step larger or smaller. @param {number} step */
function resize(step) {
  setPreference("size", String(Math.min(Math.max(Number(preference("size")) + step, -2), 3)));
}

/** Run the shortcut of a key; whether there was one. @param {KeyboardEvent} event @param {boolean} undo */
function handleKey(event, undo) {
  const [before, key] = [pendingKey, event.key];
  pendingKey = "";
  const dialog = document.querySelector("dialog[open]");
  const state = readUrl();
  const id = currentImage(dialog, event.target, state);
  const act = withErrorToast(async (name, id) => (await api.loadModule(VIEWS.search)).actions(state)[name](id));
  const screens = { s: "/", b: "/browse", m: "/map", d: "/duplicates", r: "/reports" };
  if (before === "g" && key in screens) navigate(screens[key]);
  else if (!dialog && currentView.key?.(event)) return true;
  else if (key === "m" && id) act("like", id);
  else if (key === "+" && id) act("more", id);
  else if ((key === "-" || key === "−") && id) act("less", id);
  else if (key === "y") import("./components/copy_link.js").then((module) => module.copyLink());
  else if (dialog) return false;
  else if (key === "Escape" && currentView.onEscape?.()) return true;
  else if (key === "u" || undo) historyDepth() ? history.back() : toast("There is nothing to undo.");
  else if (key === "g") pendingKey = "g";
  else if (key === "?") help();
  else if (key === "/") focusSearch();
  else if (key === "c" && state.screen === "search") act("crop");
  else if (key === "f") document.getElementById("filters")?.click();
  else if (key === "[" || key === "]") resize(key === "]" ? 1 : -1);
  else return false;
  return true;
}

/** Focus the text field where the model reads text; else choose a file. */
function focusSearch() {
  const field = document.querySelector(".describe input");
  if (field instanceof HTMLInputElement) field.focus();
  else chooseFile(searchByFile);
}

addEventListener("keydown", (event) => {
  const modified = event.ctrlKey || event.metaKey || event.altKey;
  const undo = (event.ctrlKey || event.metaKey) && event.key === "z";
  const letterOff = preference("letter-keys") === "off" && event.key.length === 1;
  if (isTyping(event.target) || ((modified || letterOff) && !undo)) return;
  if (handleKey(event, undo)) event.preventDefault();
});

const help = async () => (await dialogs()).help(readUrl().screen);
document.getElementById("help")?.addEventListener("click", help);
watchDropAndPaste((file) => getState("info") && searchByFile(file));
api.onLocked(askForKey);
applyPreferences();
boot();
