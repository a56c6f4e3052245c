// The map: a cloud of all images. Here are its points, as soon as can be; what one does with them is `map/scene.js`.

import * as api from "../api.js";
import { fill, h } from "../dom.js";
import { parse } from "../map/buffer.js";
import { stage as makeStage } from "../map/stage.js";
import { read } from "../router.js";

let view = null;

export function leave() {
  view?.end();
  view = null;
}

/** The image under the card, for the keys. */
export const current = () => view?.card?.id ?? "";
/** @param {KeyboardEvent} event */
export const key = (event) => Boolean(view?.key?.(event));
/** Close what is open; whether there was something. */
export const escape = () => Boolean(view?.close?.());

export async function render(main, info, state) {
  if (view && main.contains(view.node)) return view.follow(state);
  leave();
  const title = h("h1.unseen", "Map of all images");
  const words = h("p.empty", { role: "status" }, "Fetching the map…");
  const node = h("div.screen", title, words);
  fill(main, node);
  let early = api.bytes("map/now.bin").catch(api.said); // beside the facts; what was refused is asked for again
  const points = async (gen) => {
    const data = await early;
    early = null;
    const cloud = data?.byteLength ? parse(data) : null;
    return cloud?.gen === gen ? cloud : parse(await api.bytes(`map/${gen}.bin`));
  };
  const stop = api.poll("map", async (facts) => {
    const now = view;
    if (!facts.gen) words.textContent = drawing(facts);
    else if (now.gen === facts.gen) now.tell(facts);
    else {
      const cloud = await points(facts.gen);
      if (now === view) await (now.change ?? begin)(cloud, facts);
    }
  }, (facts) => (facts.state === "ready" && facts.job?.state !== "running" ? 15000 : 700), (error) => { words.textContent = error.message; });
  const mine = (view = { node, end: stop, follow: () => {} });

  async function begin(cloud, facts) {
    const stage = makeStage(cloud);
    const at = read().at.split(",").map(Number);
    stage.place(...(at.length === 3 && at.every(Number.isFinite) ? at : [0.5, 0.5, 0.98]));
    node.className = "mapview";
    fill(node, title, stage.node);
    await new Promise(requestAnimationFrame);
    const { scene } = await api.part(() => import("../map/scene.js"));
    if (view === mine) view = scene(node, stage, info, facts, stop);
    else stage.close();
  }
}

export function drawing(facts) {
  const job = facts.job;
  if (!job) return "There is no map of this index yet.";
  if (job.state === "failed") return job.sentence;
  const left = job.seconds_left;
  return left ? `Drawing the map: about ${left} s.` : "Drawing the map…";
}
