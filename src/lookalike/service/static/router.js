// The URL holds the state of the page, so every view can be shared as a link.

/**
 * @typedef {{screen: string, rest: string, like: string, q: string, text: string, box: string, more: string[],
 *            less: string[], f: string[], sort: string, order: string, open: string, at: string, g: number,
 *            index: string}} State
 */

const SCREENS = ["map", "browse", "duplicates", "reports", "runs", "settings", "api"];

/** @param {URL | Location} [url] @returns {State} */
export function readUrl(url = location) {
  const query = new URLSearchParams(url.search);
  const one = (name) => query.get(name) ?? "";
  const [first, ...rest] = url.pathname.split("/").filter(Boolean);
  return {
    screen: SCREENS.includes(first) ? first : "search",
    rest: rest.map(decodeURIComponent).join("/"),
    like: one("like"),
    q: one("q"),
    text: one("text"),
    box: one("box"),
    more: query.getAll("more"),
    less: query.getAll("less"),
    f: query.getAll("f"),
    sort: one("sort") || "match",
    order: one("order"),
    open: one("open"),
    at: one("at"),
    g: Number(one("g")) || 0,
    index: one("index"),
  };
}

let shownIndex = "";
/** The index that is shown, if it is not the first of the server. */
export const currentIndex = () => shownIndex;
/** Let every link name an index. @param {string} name */
export function setIndex(name) {
  shownIndex = name;
}

/** @param {Partial<State>} state */
export function urlFor(state) {
  const screen = state.screen && state.screen !== "search" ? state.screen : "";
  const path = screen ? `/${screen}${state.rest ? `/${encodeURIComponent(state.rest)}` : ""}` : "/";
  const query = new URLSearchParams();
  for (const name of ["like", "q", "text", "box"]) if (state[name]) query.set(name, state[name]);
  for (const name of ["more", "less", "f"]) for (const value of state[name] ?? []) query.append(name, value);
  if (state.sort && state.sort !== "match") query.set("sort", state.sort);
  if (state.order && state.order !== "date") query.set("order", state.order);
  if (state.open) query.set("open", state.open);
  if (state.at) query.set("at", state.at);
  if (state.g) query.set("g", String(state.g));
  if (shownIndex) query.set("index", shownIndex);
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
  return text ? `${path}?${text}` : path;
}

/** Query and filters as URL parameters of the API. @param {State} state @param {Record<string, any>} [others] */
export function queryParams(state, others = {}) {
  const query = new URLSearchParams();
  for (const name of ["like", "q", "text", "box"]) if (state[name]) query.set(name, state[name]);
  for (const name of ["more", "less", "f"]) for (const value of state[name]) query.append(name, value);
  for (const [name, value] of Object.entries(others)) query.set(name, String(value));
  return query;
}

/** The API path that answers a state. @param {State} state @param {number} k */
export const searchPath = (state, k) => `search?${queryParams(state, { k })}`;

/** @param {State} state */
export const hasQuery = (state) => Boolean(state.like || state.q || state.text || state.more.length);

/** @type {(state: State, how: string) => void} */
let listener = () => {};

/** @param {(state: State, how: string) => void} render called with "push", "replace" or "back" */
export function startRouter(render) {
  listener = render;
  history.scrollRestoration = "manual";
  addEventListener("popstate", () => render(readUrl(), "back"));
  // A plain click on one of our links changes the state; with a modifier key the browser handles it.
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href^='/']:not([target])") : null;
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const url = new URL(link.getAttribute("href") ?? "/", location.href);
    if (shownIndex) url.searchParams.set("index", shownIndex);
    navigate(url.pathname + url.search);
  });
  addEventListener(
    "scroll",
    () => {
      clearTimeout(scrollTimer);
      scrollTimer = setTimeout(() => history.replaceState({ ...history.state, scroll: scrollY }, ""), 120);
    },
    { passive: true },
  );
  render(readUrl(), "back");
}
let scrollTimer = 0;

/** @param {string} to @param {{replace?: boolean, step?: {id: string, thumb: string, name: string}}} [options] */
export function navigate(to, { replace = false, step } = {}) {
  clearTimeout(scrollTimer);
  if (!replace) history.replaceState({ ...history.state, scroll: scrollY }, "");
  history[replace ? "replaceState" : "pushState"](
    {
      depth: historyDepth() + (replace ? 0 : 1),
      trail: step ? [...searchTrail(), step] : hasQuery(readUrl(new URL(to, location.href))) ? searchTrail() : [],
    },
    "",
    to,
  );
  listener(readUrl(), replace ? "replace" : "push");
}

/** Replace the URL without rendering (the map was moved). @param {string} to */
export function replaceUrl(to) {
  history.replaceState(history.state, "", to);
}

/** Number of our own history entries before this one. */
export const historyDepth = () => history.state?.depth ?? 0;
/** The query images so far, in order. @returns {{id: string, thumb: string, name: string}[]} */
export const searchTrail = () => history.state?.trail ?? [];
export const savedScroll = () => history.state?.scroll ?? 0;

/** The URL to share; it names the index, so that a link to another index can be detected. @param {string} name */
export function shareUrl(name) {
  const url = new URL(location.href);
  url.searchParams.set("index", name);
  return url.href.replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
}
