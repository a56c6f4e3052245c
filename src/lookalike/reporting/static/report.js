// Interactive parts of a report, which is complete without them.
import { crosshair } from "./chart.js";
import { map } from "./map.js";

/** All elements that match a selector. @param {string} selector @returns {any[]} */
const all = (selector) => [...document.querySelectorAll(selector)];

for (const box of all("[data-chart=lines]")) crosshair(box);
for (const root of all("[data-map]")) map(root);

// Collapsed parts are printed, too.
let opened = [];
addEventListener("beforeprint", () => {
  opened = all("details:not([open])");
  for (const part of opened) part.open = true;
});
addEventListener("afterprint", () => {
  for (const part of opened) part.open = false;
});

// The table of contents marks the section that is being read.
const links = new Map(all("nav a").map((a) => [a.hash.slice(1), a]));
const seen = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(target.id)?.setAttribute("aria-current", "true");
    }
  },
  { rootMargin: "-20% 0px -70% 0px" },
);
for (const section of all("main > section[id]")) seen.observe(section);
