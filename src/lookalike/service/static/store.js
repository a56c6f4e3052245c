// Shared state: facts about the server, its current status, and the user's preferences.

const state = { info: null, status: null };
const listeners = new Map();

/** @param {string} key */
export const getState = (key) => state[key];

/** Whether the user may change something. */
export const canWrite = () => state.info?.rights === "write";

/** @param {Record<string, any>} patch */
export function setState(patch) {
  for (const [key, next] of Object.entries(patch)) {
    state[key] = next;
    for (const hear of listeners.get(key) ?? []) hear(next);
  }
}

/** @param {string} key @param {(value: any) => void} hear @returns {() => void} unsubscribes */
export function subscribe(key, hear) {
  if (!listeners.has(key)) listeners.set(key, new Set());
  listeners.get(key)?.add(hear);
  return () => listeners.get(key)?.delete(hear);
}

const DEFAULTS = { "letter-keys": "on", theme: "auto", caption: "label", size: "0" };

/** A preference stored in this browser. @param {keyof typeof DEFAULTS} name */
export function preference(name) {
  return localStorage.getItem(name) ?? DEFAULTS[name];
}

/** @param {keyof typeof DEFAULTS} name @param {string} to */
export function setPreference(name, to) {
  localStorage.setItem(name, to);
  if (name === "theme" || name === "size") applyPreferences();
}

/** Apply theme and image size to the page. */
export function applyPreferences() {
  const root = document.documentElement;
  if (preference("theme") === "auto") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", preference("theme"));
  root.style.setProperty("--grow", String(1.25 ** Number(preference("size"))));
}

export const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const isTouch = () => matchMedia("(hover: none)").matches;
