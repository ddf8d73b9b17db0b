// Model objects of the project: code with its settings, as programs publish them.
import { h } from "../lib/dom.js";
import { ago } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { chip, timeNode } from "../lib/parts.js";
import { link, path, projectId } from "../lib/router.js";
import { table } from "../lib/table.js";

/** The newest version of each. */
export function objectsView(objs) {
  if (!objs.length) return nothing();
  const hrefOf = (object) => link(path`/objects/${object.object_id}/versions/${object.digest}`);
  const columns = [
    {
      key: "name",
      label: "Model",
      width: "34%",
      render: (object) => h("a", { href: hrefOf(object), title: object.object_id, dir: "auto" }, object.object_id),
    },
    { key: "class", label: "Class", render: (object) => h("span.badge", object.leaf_object_class ?? "Model") },
    { key: "version", label: "Latest", render: (object) => h("span.mono", { title: object.digest }, `v${object.version_index}`) },
    {
      key: "labels",
      label: "Tags and aliases",
      render: (object) =>
        [...(object.aliases ?? []).filter((name) => name !== "latest"), ...(object.tags ?? [])]
          .slice(0, 3)
          .map((name) => chip(name, null, { class: "plain" })),
    },
    { key: "user", label: "By", render: (object) => h("span.dim", object.wb_user_id ?? "") },
    {
      key: "created",
      label: "Updated",
      number: true,
      render: (object) => timeNode(object.created_at, ago),
    },
    {
      key: "actions",
      label: h("span.hidden-text", "Actions"),
      class: "modelactions",
      render: (object) => h("a.button", { href: link("/evaluations", { q: object.object_id }) }, "Evaluations"),
    },
  ];
  return h(
    "section.card.modelcard",
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Model objects" },
      table({
        columns: () => columns,
        rows: () => objs,
        key: (object) => object.digest + object.object_id,
        label: "Model objects",
        href: hrefOf,
      }),
    ),
  );
}

function nothing() {
  return empty({
    title: "No Model objects yet",
    text:
      "A weave.Model keeps code and settings together: each change is a version, " +
      "and each evaluation records which version it ran.",
    code: [
      "import weave",
      `weave.init("${projectId()}")`,
      "",
      "class Greeter(weave.Model):",
      "    greeting: str",
      "",
      "    @weave.op",
      "    def predict(self, name: str) -> str:",
      '        return f"{self.greeting} {name}"',
      "",
      'weave.publish(Greeter(greeting="Hello"))',
    ].join("\n"),
    action: h("a.button", { href: link("/evaluations") }, "Evaluations"),
  });
}
