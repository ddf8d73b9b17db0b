// Calls into a queue: all that a filter finds, or those that are picked from what it finds.
import { h, signal } from "../lib/dom.js";
import { dialog } from "../lib/dialog.js";
import { lines, post } from "../lib/data.js";
import { ago, int, nameOf } from "../lib/format.js";
import { valueLine } from "../lib/line.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { path, projectId } from "../lib/router.js";
import { table } from "../lib/table.js";

const SHOWN = 100;

/** Ask which calls; resolves to the answer of the server {added_count, duplicates}, or null when left. */
export function addCallsDialog(queueId) {
  const [op, status, limit, fields] = [signal(""), signal(""), signal("100"), signal("inputs, output")];
  const [found, selection, problem] = [signal(null), signal(new Set()), signal("")];
  const names = h("datalist", { id: "queue-ops" });
  lines("/calls/stream_query", { limit: 300, columns: ["op_name"], sort_by: [{ field: "started_at", direction: "desc" }] })
    .then((calls) => {
    names.replaceChildren(...[...new Set(calls.map((call) => nameOf(call.op_name)))].map((value) => h("option", { value })));
  }, () => {});
  const conditions = () => ({
    filter: op.peek() ? { op_names: [`weave:///${projectId()}/op/${op.peek()}:*`] } : { trace_roots_only: true },
    ...(status.peek() ? { query: { $expr: { $eq: [{ $getField: "summary.weave.status" }, { $literal: status.peek() }] } } } : {}),
  });
  const attempt = async (action) => {
    problem.value = "";
    try {
      await action();
    } catch (error) {
      problem.value = error.message;
    }
  };
  const show = () => attempt(async () => {
    const calls = await lines("/calls/stream_query",
      { ...conditions(), limit: SHOWN, columns: ["op_name", "started_at", "inputs", "output"],
      sort_by: [{ field: "started_at", direction: "desc" }] });
    found.value = calls;
    selection.value = new Set(calls.map(({ id }) => id));
  });
  show();
  return dialog("Add calls", (close) => {
    const add = (body) => attempt(async () => close(await post(path`/annotation_queues/${queueId}/items`, {
      project_id: projectId(), call_ids: [], display_fields: fields.peek().split(",").map((text) => text.trim()).filter(Boolean),
        ...body,
    })));
    const change = (target) => (event) => {
      target.value = event.target.value.trim();
      if (target !== limit && target !== fields) show();
    };
    return [
      h("div.formrow", names,
        field("Op", h("input", { type: "text", list: "queue-ops", placeholder: "any root call", onchange: change(op) })),
        field("Status", h("select", { onchange: change(status) }, [["", "Any"], ["success", "Success"], ["error", "Error"]]
          .map(([value, text]) => h("option", { value }, text)))),
        field("Fields to show", h("input", { type: "text", value: fields.peek(), oninput: change(fields) }))),
      () => found.value && picks(found.value, selection),
      () => problem.value && h("p.problem", { role: "alert" }, problem.value),
      h("div.actions", h("label.limit", "At most ",
        h("input", { type: "number", min: 1, max: 10000, value: limit.peek(), "aria-label": "At most", oninput: change(limit) })),
        button("Add all that match", () => add({ ...conditions(), limit: Number(limit.peek()) || 100 })), h("span.grow"),
          button("Cancel", () => close()),
        h("button.button.primary",
          { type: "button", disabled: () => !selection.value.size, onclick: () => add({ call_ids: [...selection.peek()] }) },
          () => `Add ${int(selection.value.size)} selected`)),
    ];
  }, { wide: true });
}

function picks(calls, selection) {
  if (!calls.length) return h("p.dim", "No matching calls.");
  const columns = [
    { key: "op", label: "Op", render: (call) => nameOf(call.op_name) },
    { key: "inputs", label: "Inputs", render: (call) => valueLine(call.inputs, { length: 70, kind: "dim" }) },
    { key: "output", label: "Output", render: (call) => valueLine(call.output, { length: 70, kind: "dim" }) },
    { key: "started", label: "Started", number: true, render: (call) => ago(call.started_at) },
  ];
  return h("div.tablebox.picks", { tabindex: 0, role: "region", "aria-label": "Calls that match" },
    table({ columns: () => columns, rows: () => calls, key: (call) => call.id, label: "Calls that match", selection,
      keyboard: false }));
}
