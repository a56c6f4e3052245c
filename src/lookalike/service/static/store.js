// What the whole page shares: the server's facts, what moves on it, and the reader's own choices.

const state = { info: null, moving: null };
const listeners = new Map();

/** @param {string} key */
export const value = (key) => state[key];

/** Whether this reader may change something; what may not be done is not offered. */
export const writes = () => state.info?.rights === "write";

/** @param {Record<string, any>} patch */
export function set(patch) {
  for (const [key, next] of Object.entries(patch)) {
    state[key] = next;
    for (const hear of listeners.get(key) ?? []) hear(next);
  }
}

/** @param {string} key @param {(value: any) => void} hear @returns {() => void} stops it */
export function on(key, hear) {
  if (!listeners.has(key)) listeners.set(key, new Set());
  listeners.get(key)?.add(hear);
  return () => listeners.get(key)?.delete(hear);
}

const DEFAULTS = { "letter-keys": "on", theme: "auto", caption: "label", size: "0" };

/** A choice kept in this browser. @param {keyof typeof DEFAULTS} name */
export function choice(name) {
  return localStorage.getItem(name) ?? DEFAULTS[name];
}

/** @param {keyof typeof DEFAULTS} name @param {string} to */
export function choose(name, to) {
  localStorage.setItem(name, to);
  if (name === "theme" || name === "size") dress();
}

/** Put the chosen theme and size of images on the page. */
export function dress() {
  const root = document.documentElement;
  if (choice("theme") === "auto") root.removeAttribute("data-theme");
  else root.setAttribute("data-theme", choice("theme"));
  root.style.setProperty("--grow", String(1.25 ** Number(choice("size"))));
}

export const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
export const touch = () => matchMedia("(hover: none)").matches;
