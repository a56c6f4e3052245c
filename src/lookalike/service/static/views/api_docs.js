// Reference of the HTTP API, rendered from /openapi.json without external scripts.

import { get } from "../api.js";
import { withCode } from "../components/messages.js";
import { fill, h, table } from "../dom.js";
import { sectionTabs } from "./runs.js";

export async function render(main) {
  const body = h("div.api");
  fill(
    main,
    h(
      "div.screen.narrow",
      sectionTabs("api"),
      h("h1", "API"),
      h(
        "p",
        "The API is described in ",
        h("a", { href: "/openapi.json", target: "_self" }, "/openapi.json"),
        ". A key goes into the header ",
        h("code", "Authorization: Bearer KEY"),
        "; requests that change something need ",
        h("code", "X-Lookalike: 1"),
        ".",
      ),
      body,
    ),
  );
  const document_ = await get("/openapi.json");
  const groups = new Map();
  for (const [path, methods] of Object.entries(document_.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const tag = about.tags?.[0] ?? "other";
      groups.set(tag, [...(groups.get(tag) ?? []), { path, method, about }]);
    }
  }
  fill(
    body,
    [...groups].map(([tag, rows]) =>
      h(
        "section",
        h("h2", tag),
        rows.map(({ path, method, about }) => entry(path, method, about, document_)),
      ),
    ),
  );
}

function entry(path, method, about, whole) {
  const fields = [
    ...(about.parameters ?? []).map((p) => [
      p.name,
      p.in,
      kind(p.schema),
      p.required,
      p.description ?? p.schema?.description ?? "",
    ]),
    ...bodyFields(about.requestBody, whole),
  ];
  return h(
    "details.endpoint",
    h(
      "summary",
      h("b", { class: `method ${method}` }, method.toUpperCase()),
      " ",
      h("code", path),
      " ",
      h("span", withCode((about.description ?? "").split(/[.\n;:]/)[0])),
    ),
    h("p", withCode(about.description ?? "")),
    fields.length
      ? table(
          `Fields of ${path}`,
          ["Name", "Where", "Kind", "Meaning"],
          fields.map(([name, where, type, needed, words]) => [
            h("code", name),
            where,
            type,
            `${needed ? "needed. " : ""}${words}`,
          ]),
        )
      : null,
  );
}

function kind(schema) {
  if (!schema) return "";
  if (schema.anyOf)
    return schema.anyOf
      .map(kind)
      .filter((t) => t !== "null")
      .join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array") return `several ${kind(schema.items)}`;
  return schema.format === "binary" ? "file" : (schema.type ?? schema.$ref?.split("/").pop() ?? "");
}

function bodyFields(body, whole) {
  const content = Object.values(body?.content ?? {})[0];
  const name = content?.schema?.$ref?.split("/").pop();
  const schema = name ? whole.components?.schemas?.[name] : content?.schema;
  return Object.entries(schema?.properties ?? {}).map(([field, about]) => [
    field,
    "body",
    kind(about),
    schema.required?.includes(field),
    about.description ?? "",
  ]);
}
