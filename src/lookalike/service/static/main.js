// The page starts here: which screen, which keys, and what the server holds.

import * as api from "./api.js";
import { count, fill, h, toast } from "./dom.js";
import { about, help, letterKeys } from "./parts/dialogs.js";
import { choose, watch } from "./parts/intake.js";
import { go, read, start } from "./router.js";
import * as search from "./views/search.js";

const main = /** @type {HTMLElement} */ (document.getElementById("main"));
/** @type {any} */
let info = null;

async function boot() {
  const dot = document.querySelector("#status .dot");
  const words = document.getElementById("status-text");
  try {
    info = await api.get("/api/v1/info");
    dot?.classList.replace("off", "on") || dot?.classList.add("on");
    if (words) words.textContent = count(info.index.pictures, "picture");
    start(render);
  } catch (error) {
    dot?.classList.add("off");
    if (words) words.textContent = "No answer";
    fill(main, h("div", { class: "screen" }, h("div", { class: "banner bad", role: "alert" },
      `${error instanceof Error ? error.message : error} Trying again in 4 s.`)));
    setTimeout(boot, 4000);
  }
}

/** @param {import("./router.js").State} state @param {string} how */
async function render(state, how) {
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("data-screen") === state.screen) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  try {
    if (state.screen === "reports") (await import("./views/reports.js")).render(main);
    else await search.render(main, info, state, how);
  } catch (error) {
    if (!(error instanceof api.ApiError)) throw error;
    fill(main, h("div", { class: "screen" }, h("div", { class: "banner bad", role: "alert" }, error.message)));
  }
}

let waiting = "";
addEventListener("keydown", (event) => {
  const target = /** @type {HTMLElement} */ (event.target);
  const typing = target instanceof HTMLSelectElement || (target instanceof HTMLInputElement && target.type !== "checkbox");
  if (typing || event.ctrlKey || event.metaKey || event.altKey || !letterKeys()) return;
  const before = waiting;
  waiting = "";
  const inside = document.querySelector("dialog[open]");
  const state = read(location);
  const id = (inside?.classList.contains("pair") && state.open) || target.getAttribute?.("data-id") || "";
  const act = search.actions(state);
  if (before === "g" && event.key === "s") go("/");
  else if (before === "g" && event.key === "r") go("/reports");
  else if (event.key === "m" && id) act.like(id);
  else if (event.key === "+" && id) act.more(id);
  else if ((event.key === "-" || event.key === "−") && id) act.less(id);
  else if (event.key === "y") navigator.clipboard?.writeText(location.href).then(() => toast("Link copied."));
  else if (inside) return;
  else if (event.key === "g") waiting = "g";
  else if (event.key === "?") help();
  else if (event.key === "/") choose(search.take);
  else if (event.key === "f") document.getElementById("filters")?.click();
  else return;
  event.preventDefault();
});

document.getElementById("status")?.addEventListener("click", () => info && about(info));
document.getElementById("help")?.addEventListener("click", help);
watch((file) => info && search.take(file));
boot();
