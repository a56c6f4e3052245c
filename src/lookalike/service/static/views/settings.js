// Settings: the model and switching to another one, API keys, and preferences of this browser.

import * as api from "../api.js";
import { confirm, dialog } from "../components/dialogs.js";
import { actionButton, decimal, fill, formatTime, h, joinText, plural, row, toast } from "../dom.js";
import { canWrite, getState, preference, setPreference, subscribe } from "../store.js";
import { sectionTabs } from "./runs.js";

let stops = [];

export function leave() {
  for (const end of stops) end();
  stops = [];
}

export async function render(main) {
  leave();
  const model = h("section.panel", { "aria-labelledby": "s-model" });
  const keys = h("section.panel", { "aria-labelledby": "s-keys" });
  fill(main, h("div.screen.narrow", sectionTabs("settings"), h("h1", "Settings"), model, keys, pagePreferences()));
  stops.push(
    api.poll(
      "generations",
      (facts) => drawModel(model, facts),
      () => 4000,
    ),
  );
  let seen = "";
  stops.push(
    subscribe("status", async (status) => {
      const last = status.jobs?.find((job) => job.kind === "switch");
      if (last && JSON.stringify(last) !== seen) {
        seen = JSON.stringify(last);
        drawModel(model, await api.getFresh("generations"));
      }
    }),
  );
  if (canWrite()) await drawKeys(keys);
  else
    fill(
      keys,
      h("h2", { id: "s-keys" }, "Keys"),
      h("p", "This key can only read; creating keys requires write access."),
    );
}

function drawModel(place, facts) {
  const { info, status } = { info: getState("info"), status: getState("status") };
  const live = facts.generations.find((g) => g.live);
  const write = canWrite();
  const job = status?.jobs?.find((j) => j.kind === "switch");
  const busy = job?.state === "running";
  const fingerprint = joinText(live?.model.fingerprint ?? info.model.fingerprint);
  const ece = typeof live?.ece === "number" ? ` · ECE ${decimal(live.ece)}` : "";
  const select = h(
    "select",
    { "aria-label": "Model to switch to" },
    facts.models
      .filter((m) => m.name !== live?.model.name)
      .map((m) =>
        h(
          "option",
          { value: m.name },
          `${m.name}${typeof m.best === "number" ? ` (${m.metric} ${decimal(m.best)})` : ""}`,
        ),
      ),
  );
  const start = async () => {
    await api.send("switch", { model: select.value });
    toast("Embedding in the background; search keeps working.");
  };
  const old = facts.generations.filter((g) => !g.live);
  const back = (generation) =>
    actionButton("Switch back", async () => {
      await api.send("switch", { generation });
      location.reload();
    });
  fill(
    place,
    h("h2", { id: "s-model" }, "Model"),
    h(
      "p",
      h("strong", h("bdi", live?.model.name ?? info.model.name)),
      `${ece} · ${fingerprint.slice(0, 4)} · ${plural(live?.images ?? info.index.images, "image")}`,
    ),
    busy ? switchProgress(job) : null,
    job?.state === "finished" && job.message
      ? h(
          "div.banner",
          { role: "status" },
          job.message,
          comparison(job.result),
          write && job.result?.before !== undefined && job.result.generation === facts.live
            ? back(job.result.before)
            : null,
        )
      : null,
    job?.state === "failed" ? h("div.banner.bad", { role: "alert" }, job.message) : null,
    write && !busy && select.options.length
      ? row("Switch to", select, actionButton("Embed and compare", start, ".main"))
      : null,
    old.length
      ? h(
          "ul.rows",
          old.map((g) =>
            h(
              "li.row",
              h("bdi", g.model.name),
              h(
                "small",
                `${g.model.fingerprint.slice(0, 4)} · ${plural(g.images, "image")}`,
                g.complete ? null : " · not finished",
              ),
              h("span.grow"),
              write && g.complete ? back(g.number) : null,
              write
                ? actionButton("Delete", async () => {
                    if (
                      await confirm(
                        "Delete vectors",
                        `Delete the vectors of ${g.model.name}? The images stay.`,
                        "Delete",
                      )
                    ) {
                      await api.send(`generations/${g.number}`, null, "DELETE");
                      drawModel(place, await api.getFresh("generations"));
                    }
                  })
                : null,
            ),
          ),
        )
      : null,
  );
}

/** Progress of a switch: embed, compare, switch. */
function switchProgress(job) {
  const share = job.total ? `${Math.floor((100 * job.done) / job.total)} %` : "";
  const phase = /compar/i.test(job.phase) ? 1 : 0;
  return h(
    "div.steps",
    ["embed", "compare", "switch", "keep old"].map((name, k) =>
      h(
        "span",
        { class: k === phase ? "now" : k < phase ? "done" : "" },
        `${name}${k === phase && share ? ` ${share}` : ""}`,
      ),
    ),
    h("progress", { max: job.total || 1, value: job.total ? job.done : 0, "aria-label": job.title }),
    job.seconds_left ? `about ${job.seconds_left} s` : null,
    canWrite() ? actionButton("Cancel", () => api.send(`jobs/${job.id}/stop`)) : null,
  );
}

function comparison(result) {
  if (!result) return null;
  const parts = [
    typeof result.recall === "number" ? `recall against exact ${decimal(result.recall)}` : "",
    typeof result.agreement === "number"
      ? `agreement of the top 10 with the old model ${Math.round(100 * result.agreement)} %`
      : "",
  ].filter(Boolean);
  return parts.length ? h("small", parts.join(" · ")) : null;
}

async function drawKeys(place) {
  const { keys, required } = await api.getFresh("keys");
  const name = h("input", {
    type: "text",
    "aria-label": "Name of the new key",
    placeholder: "for example laptop",
    maxlength: 60,
  });
  const rights = h(
    "select",
    { "aria-label": "Rights" },
    h("option", { value: "read" }, "read"),
    h("option", { value: "write" }, "write"),
  );
  const add = async () => {
    if (!name.value.trim()) return name.focus();
    const made = await api.send("keys", { name: name.value.trim(), rights: rights.value });
    dialog(
      "New key",
      h("p", "Copy it now; it is not shown again."),
      h("p.secret", h("code", made.key)),
      row(
        actionButton("Copy", () => navigator.clipboard?.writeText(made.key).then(() => toast("Key copied.")), ".main"),
      ),
    );
    drawKeys(place);
  };
  fill(
    place,
    h("h2", { id: "s-keys" }, "Keys"),
    h("p", required ? "Every client needs a key." : "This server requires no key."),
    h(
      "ul.rows",
      keys.map((key) =>
        h(
          "li.row",
          h("bdi", key.name),
          h("small", `${key.rights} · ${key.used ? `used ${formatTime(key.used)}` : "never used"}`),
          h("span.grow"),
          actionButton("Revoke", async () => {
            if (
              await confirm("Revoke a key", `Revoke ${key.name}? Clients that use it lose access at once.`, "Revoke")
            ) {
              await api.send(`keys/${encodeURIComponent(key.id)}`, null, "DELETE");
              drawKeys(place);
            }
          }),
        ),
      ),
    ),
    row(name, rights, actionButton("New key", add, ".main")),
  );
}

/** Preferences stored in this browser. */
function pagePreferences() {
  const pick = (setting, name, options) =>
    h(
      "label.row",
      h("span.label", name),
      h(
        "select",
        { onchange: (event) => setPreference(setting, event.target.value) },
        options.map((option) => h("option", { value: option, selected: preference(setting) === option }, option)),
      ),
    );
  return h(
    "section.panel",
    { "aria-labelledby": "s-page" },
    h("h2", { id: "s-page" }, "This page"),
    pick("theme", "Theme", ["auto", "light", "dark"]),
    pick("letter-keys", "Letter keys", ["on", "off"]),
    pick("caption", "Caption", ["label", "date", "file"]),
  );
}
