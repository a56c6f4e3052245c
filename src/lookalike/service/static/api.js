// Requests to the server (paths below `/api/v1/`). Errors carry a message for the user.

export class ApiError extends Error {
  constructor(message, status, retry = 0) {
    super(message);
    this.status = status;
    this.retry = retry;
  }
}

/** The message of a refused request; any other error is a bug and is thrown again. */
export function messageOf(error) {
  if (!(error instanceof ApiError)) throw error;
  return error.message;
}

const UNREACHABLE = "The server does not answer. Is `lookalike serve` still running?";
const BUSY = "Busy.";
/**
 * Load a module of the page on first use; a failure is reported like any failed request.
 * @template T
 * @param {() => Promise<T>} load
 * @returns {Promise<T>}
 */
export const loadModule = (load) =>
  load().catch(() => {
    throw new ApiError(UNREACHABLE, 0, 4);
  });

/** Responses by path, the latest last: going back or forward needs no new request. */
const cache = new Map();
let locked = () => {};

/** Set what happens when the server requires a key. @param {() => void} act */
export function onLocked(act) {
  locked = act;
}

let base = ""; // of another index than the first
/** Address another index than the first from now on. @param {string} name */
export function useIndex(name) {
  base = `/indexes/${encodeURIComponent(name)}`;
}

/** The full path of an address of the API. @param {string} address */
export const apiUrl = (address) => `/api/v1${base}/${address}`;

async function request(address, options) {
  let response;
  try {
    response = await fetch(address[0] === "/" ? address : apiUrl(address), {
      credentials: "same-origin",
      ...options,
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(UNREACHABLE, 0, 4);
  }
  if (response.ok || response.status === 304) return response;
  const body = await response.json().catch(() => null);
  const retry = Number(response.headers.get("Retry-After")) || 0;
  if (response.status === 401 && address !== "session") locked();
  const busy = response.status === 503 || response.status === 429;
  throw new ApiError(busy ? BUSY : (body?.error?.message ?? UNREACHABLE), response.status, busy ? retry || 2 : retry);
}

async function requestJson(address, options) {
  return (await request(address, options)).json();
}

/**
 * Get JSON, from the cache where possible.
 * @param {string} address @param {AbortSignal} [signal]
 * @param {() => Promise<any>} [other] the request, if it is not a plain GET of the address
 */
export async function get(address, signal, other) {
  if (cache.has(address)) return cache.get(address);
  const answer = await (other?.() ?? requestJson(address, { signal }));
  cacheAnswer(address, answer);
  return answer;
}

/** Get JSON that may change on the server, not from the cache. @param {string} address @param {AbortSignal} [signal] */
export const getFresh = (address, signal) => requestJson(address, { signal, cache: "no-cache" });

/** @param {string} address @param {AbortSignal} [signal] */
export const getBytes = async (address, signal) => (await request(address, { signal })).arrayBuffer();

/** @param {string} address @param {any} [body] @param {string} [method] */
export function send(address, body, method = "POST") {
  const headers = { "X-Lookalike": "1", ...(body ? { "Content-Type": "application/json" } : {}) };
  return requestJson(address, { method, headers, body: body ? JSON.stringify(body) : undefined });
}

/** Send JSON and get a text. @param {string} address @param {any} body */
export async function sendForText(address, body) {
  const headers = { "X-Lookalike": "1", "Content-Type": "application/json" };
  return (await request(address, { method: "POST", headers, body: JSON.stringify(body) })).text();
}

/** @param {string} address */
export function cacheAnswer(address, answer) {
  cache.delete(address);
  cache.set(address, answer);
  if (cache.size > 30) cache.delete(cache.keys().next().value);
}

export function clearCache() {
  cache.clear();
}

/** @param {string} address @param {Blob} image @param {AbortSignal} [signal] */
export function upload(address, image, signal) {
  const form = new FormData();
  form.append("image", image, image instanceof File ? image.name : "image");
  return requestJson(address, { method: "POST", body: form, signal });
}

/**
 * Request an address repeatedly; the browser's cache turns "not modified" into the previous answer.
 * @param {string} address
 * @param {(answer: any) => void} hear called when the answer changed
 * @param {(answer: any) => number} pause milliseconds until the next request
 * @param {(error: ApiError) => void} [gone] called when the server does not answer
 * @returns {(() => void) & {again: () => void}} stops polling; `again` requests at once
 */
export function poll(address, hear, pause, gone) {
  const abort = new AbortController();
  let timer = 0;
  let before = "";
  const round = async () => {
    let wait = 4000;
    try {
      const answer = await getFresh(address, abort.signal);
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
  return Object.assign(
    () => {
      abort.abort();
      clearTimeout(timer);
    },
    {
      again: () => {
        clearTimeout(timer);
        round();
      },
    },
  );
}

/** @param {string} hash @param {number} side */
export const thumbUrl = (hash, side) => `${base}/thumb/${hash}/${side}.jpg`;
/** @param {string} id row id; slashes are kept because the server reads a path */
export const originalUrl = (id) => `${base}/original/${id.split("/").map(encodeURIComponent).join("/")}`;
/** @param {string} id */
export const queryImageUrl = (id) => `${base}/query/${id}.jpg`;
