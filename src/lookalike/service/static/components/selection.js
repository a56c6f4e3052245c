// A selection among images in order: by click, with Shift, or all; kept as a mask.

/** @param {() => void} changed called after every change */
export function createSelection(changed) {
  let mask = new Uint8Array(0);
  let anchor = 0;
  let count = 0;
  const update = () => {
    count = mask.reduce((sum, one) => sum + one, 0);
    changed();
  };
  return {
    get count() {
      return count;
    },
    has: (place) => Boolean(mask[place]),
    /** Begin with none of `size` images. @param {number} size */
    reset(size) {
      mask = new Uint8Array(size);
      anchor = 0;
      update();
    },
    toggle(place) {
      mask[place] = mask[place] ? 0 : 1;
      anchor = place;
      update();
    },
    /** Let a range begin at an image. */
    begin(place) {
      anchor = place;
    },
    /** Select everything between the last image that was clicked and this one. */
    extend(place) {
      mask.fill(1, Math.min(anchor, place), Math.max(anchor, place) + 1);
      update();
    },
    setRange(start, stop, on = true) {
      mask.fill(on ? 1 : 0, start, stop);
      update();
    },
    covers: (start, stop) => mask.subarray(start, stop).every(Boolean),
    /** The selected places as ranges `[start, stop]`. */
    ranges() {
      const out = [];
      for (let at = mask.indexOf(1); at >= 0; ) {
        const end = mask.indexOf(0, at);
        const stop = end < 0 ? mask.length : end;
        out.push([at, stop]);
        at = end < 0 ? -1 : mask.indexOf(1, stop);
      }
      return out;
    },
  };
}
