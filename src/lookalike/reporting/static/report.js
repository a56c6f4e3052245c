// What the report gains where scripts run; without them it reads the same.
import { crosshair } from "./chart.js";
import { map } from "./map.js";

for (const box of document.querySelectorAll("[data-chart=lines]")) crosshair(box);
for (const root of document.querySelectorAll("[data-map]")) map(root);

// Folded parts are open on paper.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const part of opened) part.open = true;
});
addEventListener("afterprint", () => { for (const part of opened) part.open = false; });

// The contents show where one is.
const links = new Map([...document.querySelectorAll("nav a")].map((a) => [a.hash.slice(1), a]));
const seen = new IntersectionObserver((entries) => {
  for (const { isIntersecting, target } of entries) {
    if (!isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(target.id)?.setAttribute("aria-current", "true");
  }
}, { rootMargin: "-20% 0px -70% 0px" });
for (const section of document.querySelectorAll("main > section[id]")) seen.observe(section);
