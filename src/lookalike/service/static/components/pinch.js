// Pan and pinch gestures with one or two pointers: their center before and after, and the zoom factor.

/**
 * @param {HTMLElement} node
 * @param {(move: {before: number[], after: number[], factor: number}) => void} hear
 * @param {(event: PointerEvent) => number[]} [place] position of a pointer, in any units
 */
export function pinch(node, hear, place = (event) => [event.clientX, event.clientY]) {
  const down = new Map();
  const middle = () => [0, 1].map((k) => [...down.values()].reduce((sum, at) => sum + at[k], 0) / down.size);
  const spread = () => {
    const [a, b] = down.values();
    return b ? Math.hypot(a[0] - b[0], a[1] - b[1]) || 1 : 1;
  };
  node.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    node.setPointerCapture(event.pointerId);
    down.set(event.pointerId, place(event));
  });
  node.addEventListener("pointermove", (event) => {
    if (!down.has(event.pointerId)) return;
    const [before, wide] = [middle(), spread()];
    down.set(event.pointerId, place(event));
    hear({ before, after: middle(), factor: spread() / wide });
  });
  for (const end of ["pointerup", "pointercancel"])
    node.addEventListener(end, (event) => event instanceof PointerEvent && down.delete(event.pointerId));
}
