// The URL is the state: what it says is what is shown, and every link can be shared.

/**
 * @typedef {{screen: string, rest: string, like: string, q: string, text: string, box: string, more: string[],
 *            less: string[], f: string[], sort: string, open: string, at: string, g: number, index: string}} State
 */

const SCREENS = ["map", "duplicates", "reports", "runs", "settings", "api"];

/** @param {URL | Location} [url] @returns {State} */
export function read(url = location) {
  const query = new URLSearchParams(url.search);
  const one = (name) => query.get(name) ?? "";
  const [first, ...rest] = url.pathname.split("/").filter(Boolean);
  return {
    screen: SCREENS.includes(first) ? first : "search",
    rest: rest.map(decodeURIComponent).join("/"),
    like: one("like"), q: one("q"), text: one("text"), box: one("box"),
    more: query.getAll("more"), less: query.getAll("less"), f: query.getAll("f"),
    sort: one("sort") || "match", open: one("open"), at: one("at"), g: Number(one("g")) || 0, index: one("index"),
  };
}

/** @param {Partial<State>} state */
export function address(state) {
  const screen = state.screen && state.screen !== "search" ? state.screen : "";
  const path = screen ? `/${screen}${state.rest ? `/${encodeURIComponent(state.rest)}` : ""}` : "/";
  const query = new URLSearchParams();
  for (const name of ["like", "q", "text", "box"]) if (state[name]) query.set(name, state[name]);
  for (const name of ["more", "less", "f"]) for (const value of state[name] ?? []) query.append(name, value);
  if (state.sort && state.sort !== "match") query.set("sort", state.sort);
  if (state.open) query.set("open", state.open);
  if (state.at) query.set("at", state.at);
  if (state.g) query.set("g", String(state.g));
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
  return text ? `${path}?${text}` : path;
}

/** A state's question and filters, as the server reads them. @param {State} state @param {Record<string, any>} [others] */
export function asked(state, others = {}) {
  const query = new URLSearchParams();
  for (const name of ["like", "q", "text", "box"]) if (state[name]) query.set(name, state[name]);
  for (const name of ["more", "less", "f"]) for (const value of state[name]) query.append(name, value);
  for (const [name, value] of Object.entries(others)) query.set(name, String(value));
  return query;
}

/** What is asked of the server for a state. @param {State} state @param {number} k */
export const question = (state, k) => `search?${asked(state, { k })}`;

/** @param {State} state */
export const asks = (state) => Boolean(state.like || state.q || state.text || state.more.length);

let listener = () => {};

/** @param {(state: State, how: string) => void} render called with "push", "replace" or "back" */
export function start(render) {
  listener = render;
  history.scrollRestoration = "manual";
  addEventListener("popstate", () => render(read(), "back"));
  // A plain click on one of our links changes the state; with a modifier the browser does what it always does.
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[href^='/']:not([target])") : null;
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.getAttribute("href") ?? "/");
  });
  addEventListener("scroll", () => {
    clearTimeout(scrolled);
    scrolled = setTimeout(() => history.replaceState({ ...history.state, scroll: scrollY }, ""), 120);
  }, { passive: true });
  render(read(), "back");
}
let scrolled = 0;

/** @param {string} to @param {{replace?: boolean, step?: {id: string, thumb: string, name: string}}} [options] */
export function go(to, { replace = false, step } = {}) {
  clearTimeout(scrolled);
  if (!replace) history.replaceState({ ...history.state, scroll: scrollY }, "");
  history[replace ? "replaceState" : "pushState"]({ depth: depth() + (replace ? 0 : 1), trail: step ? [...trail(), step] : asks(read(new URL(to, location.href))) ? trail() : [] }, "", to);
  listener(read(), replace ? "replace" : "push");
}

/** Note where one is without drawing anything anew (a moved map). @param {string} to */
export function note(to) {
  history.replaceState(history.state, "", to);
}

/** How many of our own steps lie behind this one. */
export const depth = () => history.state?.depth ?? 0;
/** The images asked by, in order. @returns {{id: string, thumb: string, name: string}[]} */
export const trail = () => history.state?.trail ?? [];
export const savedScroll = () => history.state?.scroll ?? 0;

/** The address to share: with the index's name, so that a link to another says so. @param {string} name */
export function shared(name) {
  const url = new URL(location.href);
  url.searchParams.set("index", name);
  return url.href.replaceAll("%2F", "/").replaceAll("%3A", ":").replaceAll("%2C", ",");
}
