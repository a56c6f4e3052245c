// Everything that is asked of the server. Errors come back as sentences a person can act on.

export class ApiError extends Error {
  /** @param {string} sentence @param {number} status 0 when the server did not answer @param {number} retry seconds */
  constructor(sentence, status, retry = 0) {
    super(sentence);
    this.status = status;
    this.retry = retry;
  }
}

const GONE = "The server does not answer. Is `lookalike serve` still running?";
/** Answers by address, the latest last; a question asked again (back, forward) is answered at once. */
const cache = new Map();

/** @param {string} address @param {RequestInit} [options] */
async function call(address, options) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(GONE, 0, 4);
  }
  const body = await response.json().catch(() => null);
  if (response.ok && body) return body;
  const retry = Number(response.headers.get("Retry-After")) || 0;
  throw new ApiError(body?.error?.sentence ?? GONE, response.status, retry);
}

/** @param {string} address @param {AbortSignal} [signal] */
export async function get(address, signal) {
  if (cache.has(address)) return cache.get(address);
  const answer = await call(address, { signal });
  remember(address, answer);
  return answer;
}

/** @param {string} address @param {any} answer */
export function remember(address, answer) {
  cache.delete(address);
  cache.set(address, answer);
  if (cache.size > 30) cache.delete(cache.keys().next().value);
}

export function forgetAnswers() {
  cache.clear();
}

/** @param {string} address @param {Blob} picture @param {AbortSignal} signal */
export function upload(address, picture, signal) {
  const form = new FormData();
  form.append("picture", picture, picture instanceof File ? picture.name : "picture");
  return call(address, { method: "POST", body: form, signal });
}

/** @param {string} id of an uploaded picture */
export function forget(id) {
  return call(`/api/v1/queries/${id}`, { method: "DELETE", headers: { "X-Lookalike": "1" } });
}

/** @param {string} hash @param {number} side */
export const thumb = (hash, side) => `/thumb/${hash}/${side}.jpg`;
/** @param {string} id of a row; slashes stay, as the server reads a path */
export const original = (id) => `/original/${id.split("/").map(encodeURIComponent).join("/")}`;
/** @param {string} id */
export const queryPicture = (id) => `/query/${id}.jpg`;
