// The newest calls that used a version.
import { h } from "../lib/dom.js";
import { lines, postProject, resource } from "../lib/data.js";
import { ago, duration, nameOf, plural, secondsBetween } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { dot, loaded, timeNode } from "../lib/parts.js";
import { valueLine } from "../lib/line.js";
import { link, path } from "../lib/router.js";
import { table } from "../lib/table.js";

const SHOWN = 50;
const COLUMNS = ["id", "op_name", "display_name", "trace_id", "started_at", "ended_at", "exception", "inputs", "output"];

/** The newest calls of a filter of the API, with their number; `href` leads to all of them where a page can show them. */
export function callsView(filter, nothing, href = null) {
  const state = resource(
    () => filter,
    async (wanted, abort) => {
      const sort = [{ field: "started_at", direction: "desc" }];
      const [calls, stats] = await Promise.all([
        lines("/calls/stream_query", { filter: wanted, limit: SHOWN, sort_by: sort, columns: COLUMNS }, undefined, abort),
        postProject("/calls/query_stats", { filter: wanted }, abort),
      ]);
      return { calls, count: stats.count };
    },
  );
  return h(
    "div",
    loaded(state, ({ calls, count }) =>
      calls.length
        ? [
            h(
              "div.callshead",
              h(
                "span.dim",
                count > calls.length
                  ? `The newest ${calls.length} of ${plural(count, "call")}`
                  : plural(count, "call"),
              ),
              href && h("a.button", { href }, "Show in calls"),
            ),
            h("div.boxed", callTable(calls)),
          ]
        : empty({ title: "No calls", text: nothing }),
    ),
  );
}

function callTable(calls) {
  const columns = [
    {
      key: "op",
      label: "Call",
      width: "26%",
      render: (call) =>
        h(
          "a",
          { href: link(path`/traces/${call.trace_id}`, { call: call.id }), title: call.display_name ?? nameOf(call.op_name) },
          dot(call.exception ? "error" : call.ended_at ? "success" : "running"),
          " ",
          call.display_name ?? nameOf(call.op_name),
        ),
    },
    { key: "inputs", label: "Inputs", width: "30%", render: (call) => preview(withoutSelf(call.inputs)) },
    { key: "output", label: "Output", width: "24%", render: (call) => preview(call.exception ?? call.output) },
    {
      key: "duration",
      label: "Duration",
      number: true,
      width: "100px",
      render: (call) => duration(secondsBetween(call.started_at, call.ended_at)),
    },
    {
      key: "started",
      label: "Started",
      number: true,
      width: "110px",
      render: (call) => timeNode(call.started_at, ago),
    },
  ];
  const made = table({
      resizable: true,
    columns: () => columns,
    rows: () => calls,
    key: (call) => call.id,
    label: "Calls",
    href: (call) => link(path`/traces/${call.trace_id}`, { call: call.id }),
  });
  made.classList.add("fixed");
  return made;
}

const preview = (value) => valueLine(value, { kind: "dim" });

function withoutSelf(inputs) {
  if (!inputs || typeof inputs !== "object") return inputs;
  const { self: ignored, ...others } = inputs;
  return others;
}
