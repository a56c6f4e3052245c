// Everything that is asked of the server, by addresses below `/api/v1/`. Errors come back as sentences a person can act on.

export class ApiError extends Error {
  constructor(sentence, status, retry = 0) {
    super(sentence);
    this.status = status;
    this.retry = retry;
  }
}

/** The sentence of a refusal; anything else is a mistake of ours and stays one. */
export function said(error) {
  if (!(error instanceof ApiError)) throw error;
  return error.message;
}

const GONE = "The server does not answer. Is `lookalike serve` still running?";
const BUSY = "Busy.";
/** A part of the page that is fetched when it is wanted: that fails as any request does. */
export const part = (load) => load().catch(() => { throw new ApiError(GONE, 0, 4); });

/** Answers by address, the latest last; a question asked again (back, forward) is answered at once. */
const cache = new Map();
let locked = () => {};

/** What to do when the server asks for a key. @param {() => void} act */
export function whenLocked(act) {
  locked = act;
}

async function fetched(address, options) {
  let response;
  try {
    response = await fetch(address[0] === "/" ? address : `/api/v1/${address}`, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(GONE, 0, 4);
  }
  if (response.ok || response.status === 304) return response;
  const body = await response.json().catch(() => null);
  const retry = Number(response.headers.get("Retry-After")) || 0;
  if (response.status === 401 && address !== "session") locked();
  const busy = response.status === 503 || response.status === 429;
  throw new ApiError(busy ? BUSY : body?.error?.sentence ?? GONE, response.status, busy ? retry || 2 : retry);
}

async function call(address, options) {
  return (await fetched(address, options)).json();
}

/** @param {string} address @param {AbortSignal} [signal] @param {() => Promise<any>} [other] how to ask, if not by the address */
export async function get(address, signal, other) {
  if (cache.has(address)) return cache.get(address);
  const answer = await (other?.() ?? call(address, { signal }));
  remember(address, answer);
  return answer;
}

/** What changes on the server is asked for each time. @param {string} address @param {AbortSignal} [signal] */
export const fresh = (address, signal) => call(address, { signal, cache: "no-cache" });

/** @param {string} address @param {AbortSignal} [signal] */
export const bytes = async (address, signal) => (await fetched(address, { signal })).arrayBuffer();

/** @param {string} address @param {any} [body] @param {string} [method] */
export function send(address, body, method = "POST") {
  const headers = { "X-Lookalike": "1", ...(body ? { "Content-Type": "application/json" } : {}) };
  return call(address, { method, headers, body: body ? JSON.stringify(body) : undefined });
}

/** @param {string} address */
export function remember(address, answer) {
  cache.delete(address);
  cache.set(address, answer);
  if (cache.size > 30) cache.delete(cache.keys().next().value);
}

export function forgetAnswers() {
  cache.clear();
}

/** @param {string} address @param {Blob} image @param {AbortSignal} [signal] */
export function upload(address, image, signal) {
  const form = new FormData();
  form.append("image", image, image instanceof File ? image.name : "image");
  return call(address, { method: "POST", body: form, signal });
}

/**
 * Ask again and again as long as the page shows it; the browser's cache turns "not modified" into the old answer.
 * @param {string} address @param {(answer: any) => void} hear @param {(answer: any) => number} pause in ms, from the last answer
 * @param {() => void} [gone] the server did not answer
 * @returns {(() => void) & {again: () => void}} ends it, or asks at once
 */
export function poll(address, hear, pause, gone) {
  const abort = new AbortController();
  let timer = 0;
  let before = "";
  const round = async () => {
    let wait = 4000;
    try {
      const answer = await fresh(address, abort.signal);
      const text = JSON.stringify(answer);
      if (text !== before) await hear(answer);
      before = text;
      wait = pause(answer);
    } catch (error) {
      if (abort.signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      before = "";
      gone?.(error);
    }
    timer = setTimeout(round, document.hidden ? Math.max(wait, 10000) : wait);
  };
  round();
  return Object.assign(() => { abort.abort(); clearTimeout(timer); }, { again: () => { clearTimeout(timer); round(); } });
}

/** @param {string} hash @param {number} side */
export const thumb = (hash, side) => `/thumb/${hash}/${side}.jpg`;
/** @param {string} id of a row; slashes stay, as the server reads a path */
export const original = (id) => `/original/${id.split("/").map(encodeURIComponent).join("/")}`;
/** @param {string} id */
export const queryImage = (id) => `/query/${id}.jpg`;
