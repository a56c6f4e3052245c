// The map of all images: loads and paints the points first, then the controls (`map/controls.js`).

import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { createCanvas } from "../map/canvas.js";
import { parsePoints } from "../map/points.js";
import { readUrl } from "../router.js";

let view = null;

export function leave() {
  view?.end();
  view = null;
}

/** The image of the open card. */
export const current = () => view?.card?.id ?? "";
/** @param {KeyboardEvent} event */
export const key = (event) => Boolean(view?.key?.(event));
/** Close the card or the lasso; whether one was open. */
export const onEscape = () => Boolean(view?.close?.());

export async function render(main, info, state) {
  if (view && main.contains(view.node)) return view.follow(state);
  leave();
  const title = h("h1.unseen", "Map of all images");
  const words = h("p.empty", { role: "status" }, "Loading the map…");
  const node = h("div.screen", title, words);
  fill(main, node);
  // Fetched in parallel with the facts; if refused, it is requested again below.
  let early = api.getBytes("map/now.bin").catch((error) => void api.messageOf(error));
  const points = async (gen) => {
    const data = await early;
    early = null;
    const cloud = data?.byteLength ? parsePoints(data) : null;
    return cloud?.gen === gen ? cloud : parsePoints(await api.getBytes(`map/${gen}.bin`));
  };
  const stop = api.poll(
    "map",
    async (facts) => {
      const now = view;
      if (!facts.gen) words.textContent = drawingMessage(facts);
      else if (now.gen === facts.gen) now.tell(facts);
      else {
        const cloud = await points(facts.gen);
        if (now === view) await (now.change ?? begin)(cloud, facts);
      }
    },
    (facts) => (facts.state === "ready" && facts.job?.state !== "running" ? 15000 : 700),
    (error) => {
      words.textContent = error.message;
    },
  );
  const mine = { node, end: stop, follow: () => {} };
  view = mine;

  async function begin(cloud, facts) {
    const canvas = createCanvas(cloud);
    const at = readUrl().at.split(",").map(Number);
    canvas.place(...(at.length === 3 && at.every(Number.isFinite) ? at : [0.5, 0.5, 0.98]));
    node.className = "mapview";
    fill(node, title, canvas.node);
    await new Promise(requestAnimationFrame);
    const { createControls } = await api.loadModule(() => import("../map/controls.js"));
    if (view === mine) view = createControls(node, canvas, info, facts, stop);
    else canvas.close();
  }
}

export function drawingMessage(facts) {
  const job = facts.job;
  if (!job) return "There is no map of this index yet.";
  if (job.state === "failed") return job.message;
  const left = job.seconds_left;
  return left ? `Drawing the map: about ${left} s.` : "Drawing the map…";
}
