// The tokens of a call and what they cost, model by model.
import { h } from "../lib/dom.js";
import { int, money } from "../lib/format.js";
import { facts } from "../lib/panels.js";
import { link } from "../lib/router.js";
import { usageOf } from "../lib/spans.js";

/** A table of what the call reports, and the sum of it and all calls below where the page knows that. */
export function callUsage(call, below) {
  const { rows } = usageOf(call);
  return [
    h("section", h("h3", "This call"), rows.length ? table(rows) : h("p.dim", "It used no tokens of its own.")),
    () => whole(below(call.id)),
    h(
      "p.dim",
      "SDKs add the usage of child calls to a call’s own. Prices are those in force on the day of the call; ",
      h("a.ref", { href: link("/costs") }, "see and set prices"),
      ".",
    ),
  ];
}

function whole(used) {
  return (
    used &&
    (used.input || used.output || used.cost) &&
    h(
      "section",
      h("h3", "Including child calls"),
      facts([
        ["Input tokens", int(used.input)],
        ["Output tokens", int(used.output)],
        ["Cost", used.cost === null ? "no price" : money(used.cost)],
      ]),
    )
  );
}

function table(rows) {
  const cells = (row) =>
    [row.requests, row.input, row.output, row.cached].map((value) => h("td.number", value == null ? "" : int(value)));
  const total = (name) => rows.reduce((sum, row) => sum + (row[name] ?? 0), 0);
  const cost = rows.some((row) => row.cost !== null) ? money(total("cost")) : "no price";
  return h(
    "div.usagebox",
    h(
      "table.table",
      { "aria-label": "Usage of this call" },
      h(
        "thead",
        h(
          "tr",
          h("th", { scope: "col" }, "Model"),
          ["Requests", "Input", "Output", "Cached", "Cost"].map((text) => h("th.number", { scope: "col" }, text)),
        ),
      ),
      h(
        "tbody",
        rows.map((row) =>
          h(
            "tr",
            h("td", { title: row.model }, row.model),
            cells(row),
            h("td.number", row.cost === null ? h("span.dim", "no price") : money(row.cost)),
          ),
        ),
      ),
      rows.length > 1
        ? h(
            "tfoot",
            h(
              "tr",
              h("td", "Sum"),
              cells({ requests: total("requests"), input: total("input"), output: total("output"), cached: total("cached") }),
              h("td.number", cost),
            ),
          )
        : null,
    ),
  );
}
