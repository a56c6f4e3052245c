// The page starts here: which screen, which keys, and what the server holds.

import * as api from "./api.js";
import { action, count, fill, guarded, h, toast } from "./dom.js";
import { choose, watch } from "./parts/intake.js";
import { depth, go, read, start } from "./router.js";
import { choice, choose as choosePreference, dress, set, value } from "./store.js";

const main = document.getElementById("main");
/** The screens, fetched when first wanted: `render(main, info, state, how)`, and maybe `leave`, `key`, `escape`, `current`. */
const VIEWS = {
  search: () => import("./views/search.js"),
  map: () => import("./views/map.js"),
  duplicates: () => import("./views/duplicates.js"),
  reports: () => import("./views/reports.js"),
  runs: () => import("./views/runs.js"),
  settings: () => import("./views/settings.js"),
  api: () => import("./views/api.js"),
};
const dialogs = () => import("./parts/dialogs.js");
const askForKey = async () => (await dialogs()).askForKey();

/** What is said of an error; plainly, where even the words cannot be fetched. */
async function failure(error, again) {
  try {
    return (await import("./parts/states.js")).failure(error, again, error.status === 401 && action("Enter a key", askForKey));
  } catch {
    setTimeout(again, 4000);
    return h("p.empty", { role: "alert" }, error.message);
  }
}

/** An image to search by. @param {File} file */
const take = guarded(async (file) => (await api.part(VIEWS.search)).take(file));

let shown = {};

async function boot() {
  try {
    VIEWS[read().screen]().catch(() => {}); // on its way while the server is asked; wanted again below
    set({ info: await api.fresh("info") });
    tell("on", count(value("info").index.images, "image"));
    start(render);
    follow();
  } catch (error) {
    const { status } = error;
    const locked = status === 401;
    tell("off", locked ? "Locked" : "No answer");
    fill(main, h("div.screen", h("h1.unseen", "lookalike"), await failure({ message: api.said(error), status, retry: locked ? 0 : 4 }, boot)));
  }
}

/** The dot above and its words. */
function tell(kind, words) {
  document.querySelector("#status .dot").className = `dot ${kind}`;
  document.getElementById("status-text").textContent = words;
}

/** What moves on the server, on the dot above and for whoever wants to know. */
function follow() {
  api.poll("state", async (moving) => {
    const before = value("info").index;
    if (["name", "generation", "updated", "images"].some((name) => before[name] !== moving.index[name])) {
      api.forgetAnswers(); // they were another state's, or another model's
      set({ info: await api.fresh("info") });
    }
    const info = value("info");
    set({ moving, info: { ...info, index: { ...info.index, complete: moving.index.complete } } });
    const job = moving.job;
    const share = job?.total ? ` ${Math.floor((100 * job.done) / job.total)} %` : "…";
    tell(job ? "busy" : "on", job ? `${job.phase || job.title}${share}` : count(moving.index.images, "image"));
  }, (moving) => (moving.job ? 1000 : 5000), () => tell("off", "No answer"));
}

async function render(state, how) {
  for (const link of document.querySelectorAll("#screens a")) {
    const own = link.getAttribute("data-screen") === state.screen || (link.classList.contains("phone") && ["settings", "api"].includes(state.screen));
    if (own) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const info = value("info");
  const draw = async () => {
    const next = await api.part(VIEWS[state.screen]);
    if (next !== shown) {
      shown.leave?.();
      scrollTo(0, 0);
    }
    shown = next;
    await next.render(main, info, state, how);
  };
  const name = state.screen === "api" ? "API" : (state.screen === "runs" && state.rest) || state.screen[0].toUpperCase() + state.screen.slice(1);
  document.title = state.screen === "search" ? "lookalike" : `${name} · lookalike`;
  document.body.dataset.screen = state.screen;
  if (state.index && state.index !== info.index.name) {
    fill(main, h("div.screen", h("h1", "Another index"), h("div.banner.bad", { role: "alert" }, `This link belongs to index ${state.index}.`)));
    return;
  }
  try {
    await draw();
  } catch (error) {
    if (!(error instanceof api.ApiError)) throw error;
    fill(main, h("div.screen", h("h1", "That did not work"), await failure(error, () => render(read(), how))));
  }
}

// An image that was refused (too many at once, a server that starts again) is asked for a few times more, ever later.
document.addEventListener("error", ({ target }) => {
  if (!(target instanceof HTMLImageElement) || (target.tries ??= 0) > 4) return;
  setTimeout(() => target.isConnected && (target.src = target.src), 1000 * (1 + Math.random()) * 2 ** target.tries++);
}, true);

let waiting = "";
addEventListener("keydown", (event) => {
  const target = event.target;
  const typing = target instanceof HTMLSelectElement || target instanceof HTMLTextAreaElement || (target instanceof HTMLInputElement && target.type !== "checkbox");
  const undo = (event.ctrlKey || event.metaKey) && event.key === "z";
  if (typing || ((event.ctrlKey || event.metaKey || event.altKey) && !undo) || (choice("letter-keys") === "off" && event.key.length === 1 && !undo)) return;
  const before = waiting;
  waiting = "";
  const inside = document.querySelector("dialog[open]");
  const state = read();
  const id = (inside?.classList.contains("pair") && state.open) || target.getAttribute?.("data-id") || (state.screen === "map" && shown.current?.()) || "";
  const act = guarded(async (name, id) => (await api.part(VIEWS.search)).actions(state)[name](id));
  const screens = { s: "/", m: "/map", d: "/duplicates", r: "/reports" };
  const key = event.key;
  const words = document.querySelector(".describe input");
  if (before === "g" && key in screens) go(screens[key]);
  else if (!inside && shown.key?.(event)) ;
  else if (key === "m" && id) act("like", id);
  else if (key === "+" && id) act("more", id);
  else if ((key === "-" || key === "−") && id) act("less", id);
  else if (key === "y") import("./parts/share.js").then((share) => share.copyLink());
  else if (inside) return;
  else if (key === "Escape" && shown.escape?.()) ;
  else if (key === "u" || undo) (depth() ? history.back() : toast("There is nothing to undo."));
  else if (key === "g") waiting = "g";
  else if (key === "?") help();
  else if (key === "/") words ? words.focus() : choose(take);
  else if (key === "c" && state.screen === "search") act("crop");
  else if (key === "f") document.getElementById("filters")?.click();
  else if (key === "[" || key === "]") choosePreference("size", String(Math.min(Math.max(Number(choice("size")) + (key === "]" ? 1 : -1), -2), 3)));
  else return;
  event.preventDefault();
});

const help = async () => (await dialogs()).help(read().screen);
document.getElementById("help")?.addEventListener("click", help);
watch((file) => value("info") && take(file));
api.whenLocked(askForKey);
dress();
boot();
