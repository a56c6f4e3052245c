// The URL is the state: what it says is what is shown, and every link can be shared.

/**
 * @typedef {{screen: string, like: string, q: string, more: string[], less: string[], f: string[],
 *            sort: string, open: string}} State
 */

/** @param {URL | Location} url @returns {State} */
export function read(url) {
  const query = new URLSearchParams(url.search);
  return {
    screen: url.pathname.startsWith("/reports") ? "reports" : "search",
    like: query.get("like") ?? "",
    q: query.get("q") ?? "",
    more: query.getAll("more"),
    less: query.getAll("less"),
    f: query.getAll("f"),
    sort: query.get("sort") ?? "match",
    open: query.get("open") ?? "",
  };
}

/** @param {Partial<State>} state */
export function address(state) {
  if (state.screen === "reports") return "/reports";
  const query = new URLSearchParams();
  for (const name of ["like", "q"]) if (state[name]) query.set(name, state[name]);
  for (const name of ["more", "less", "f"]) for (const value of state[name] ?? []) query.append(name, value);
  if (state.sort && state.sort !== "match") query.set("sort", state.sort);
  if (state.open) query.set("open", state.open);
  const text = query.toString().replaceAll("%2F", "/").replaceAll("%3A", ":");
  return text ? `/?${text}` : "/";
}

/** What is asked of the server for a state. @param {State} state @param {number} k */
export function question(state, k) {
  const query = new URLSearchParams();
  if (state.like) query.set("like", state.like);
  if (state.q) query.set("q", state.q);
  for (const name of ["more", "less", "f"]) for (const value of state[name]) query.append(name, value);
  query.set("k", String(k));
  return `/api/v1/search?${query}`;
}

/** @param {State} state */
export const asks = (state) => Boolean(state.like || state.q || state.more.length);

/** @type {(state: State, how: string) => void} */
let listener = () => {};

/** @param {(state: State, how: string) => void} render called with "push", "replace" or "back" */
export function start(render) {
  listener = render;
  history.scrollRestoration = "manual";
  addEventListener("popstate", () => render(read(location), "back"));
  // A plain click on one of our links changes the state; with a modifier the browser does what it always does.
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element ? event.target.closest("a[data-link]") : null;
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    go(link.getAttribute("href") ?? "/");
  });
  addEventListener("scroll", () => {
    clearTimeout(scrolled);
    scrolled = setTimeout(() => history.replaceState({ ...history.state, scroll: scrollY }, ""), 120);
  }, { passive: true });
  render(read(location), "back");
}
let scrolled = 0;

/** @param {string} to @param {{replace?: boolean}} [options] */
export function go(to, { replace = false } = {}) {
  clearTimeout(scrolled);
  if (!replace) history.replaceState({ ...history.state, scroll: scrollY }, "");
  history[replace ? "replaceState" : "pushState"]({ depth: depth() + (replace ? 0 : 1) }, "", to);
  listener(read(location), replace ? "replace" : "push");
}

/** How many of our own steps lie behind this one. */
export const depth = () => history.state?.depth ?? 0;
export const savedScroll = () => history.state?.scroll ?? 0;
