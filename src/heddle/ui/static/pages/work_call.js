// The call that is looked at on the work page: its conversation or its inputs and output, the chosen fields first.
import { h } from "../lib/dom.js";
import { chatView, hasChat } from "../lib/chat.js";
import { duration, nameOf, secondsBetween } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { problemView } from "../lib/problem.js";
import { dot, segments, skeleton, timeNode } from "../lib/parts.js";
import { valueSection } from "../lib/value.js";
import { link, path, query, setQuery } from "../lib/router.js";

/** The call of an item; `data` is a signal of {call} or null while it loads. */
export function callPanel(item, data) {
  return h("section.workcall", { "aria-label": "Call", tabindex: 0 }, h("header",
    h("h2.one-line", { title: nameOf(item.call_op_name) }, nameOf(item.call_op_name)),
    () => data.value?.call && [dot(data.value.call.exception ? "error" : "success"),
      h("span.dim", duration(secondsBetween(data.value.call.started_at, data.value.call.ended_at)))],
    h("span.dim", timeNode(item.call_started_at)), h("span.grow"),
    () => data.value?.call && hasChat(data.value.call) && segments("View", [["", "Chat"], ["data", "Data"]],
      () => query("view") ?? "", (value) => setQuery({ view: value })),
    h("a.ref", { href: link(path`/traces/${item.call_trace_id}`, { call: item.call_id }), target: "_blank",
      rel: "noopener noreferrer" }, "Open trace")),
  () => (data.value ? body(item, data.value.call) : skeleton(8)));
}

function body(item, call) {
  if (!call) return empty({ title: "This call was deleted", text: "Press s to skip it." });
  if (hasChat(call) && query("view") !== "data") return chatView(call);
  const named = (item.display_fields ?? []).filter((name) => !["inputs", "output"].includes(name));
  const isDefault = !item.display_fields?.length;
  return [
    ...named.map((name) => part(name, valueAt(call, name))),
    (isDefault || item.display_fields.includes("inputs")) && part("Inputs", call.inputs),
    (isDefault || item.display_fields.includes("output")) && part("Output", call.output),
    problemView(call.exception),
    named.length > 0 && h("details.workrest", h("summary", "Everything"), part("Inputs", call.inputs),
      part("Output", call.output)),
  ];
}

const part = (name, value) => h("div.workpart", valueSection(name, value));

/** The value at a dotted path like `inputs.question`. */
function valueAt(call, name) {
  return name.split(".").reduce((value, key) => (value == null ? undefined : value[key]), call);
}
