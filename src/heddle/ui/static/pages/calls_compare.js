// Two to four calls side by side.
import { lines } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { compact, duration, money, oneLine, secondsBetween, when } from "../lib/format.js";
import { json } from "../lib/json.js";
import { dot, failure, kindChip, skeleton } from "../lib/parts.js";
import { link, path } from "../lib/router.js";
import { callName, kindOf, statusOf, usageOf } from "../lib/spans.js";

/** Open the comparison; the first call is what the others are measured against. */
export function compareCalls(ids) {
  return dialog(`Compare ${ids.length} calls`, () => {
    const shown = signal(/** @type {any} */ (skeleton(6)));
    const load = () => lines("/calls/stream_query", { filter: { call_ids: ids }, include_costs: true, include_feedback: true })
      .then(
      (calls) => { shown.value = comparison(ids.map((id) => calls.find((call) => call.id === id)).filter(Boolean)); },
      (error) => { shown.value = failure(error, load); });
    load();
    return () => shown.value;
  }, { wide: true });
}

function comparison(calls) {
  const figures = calls.map(figuresOf);
  const line = (name, cells) => h("tr", h("th", { scope: "row", style: { "vertical-align": "top", padding: "8px 10px" } }, name),
    cells.map((cell) => h("td", { style: { "vertical-align": "top", "white-space": "normal", padding: "8px 10px" } }, cell)));
  const metric = (name, key, write) =>
    line(name, figures.map((found, index) => [h("span", { class: "mono" }, write(found[key])),
    index ? delta(found[key], figures[0][key]) : null]));
  return h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Comparison" },
    h("table.table", { style: { "table-layout": "fixed" } },
    h("thead", h("tr", h("th", { scope: "col", style: { width: "96px", padding: "8px 10px" } }, "Call"),
      calls.map((call) => h("th", { scope: "col" }, heading(call))))),
    h("tbody", line("Started", calls.map((call) => when(call.started_at))),
      metric("Latency", "seconds", duration), metric("Tokens", "tokens", compact), metric("Cost", "cost", money),
      line("Inputs", calls.map((call) => json(call.inputs, 2))),
      line("Output", calls.map(
        (call) => (call.exception
        ? h("span.worse.mono", { dir: "auto", style: { "white-space": "pre-wrap", "overflow-wrap": "anywhere" } },
        call.exception.slice(0, 2000)) : json(call.output, 2)))),
      line("Feedback", calls.map((call) => (call.summary?.weave?.feedback ?? [])
        .map((entry) => h("p", { dir: "auto" }, feedbackText(entry))))))));
}

function heading(call) {
  const href = link(path`/traces/${call.trace_id}`, { call: call.id });
  return h("span", { style: { display: "flex", gap: "8px", "align-items": "center" } }, dot(statusOf(call)),
    h("a.one-line", { href, title: call.id }, callName(call)), kindChip(kindOf(call)));
}

function feedbackText({ feedback_type: type, payload }) {
  return payload?.emoji ?? payload?.note
    ?? `${type.replace(/^wandb\.(runnable|annotation)\./, "")}: ${oneLine(payload?.output ?? payload?.value ?? payload, 200)}`;
}

function figuresOf(call) {
  const { input, output, cost } = usageOf(call);
  return { seconds: secondsBetween(call.started_at, call.ended_at), tokens: input + output || null, cost };
}

/** How much more or less than the first; less is better for all that is compared here. */
function delta(value, first) {
  if (value == null || !first) return null;
  const share = (value - first) / first;
  if (Math.abs(share) < 0.005) return null;
  return h("span", { class: share < 0 ? "better" : "worse" }, ` ${share > 0 ? "+" : "−"}${Math.abs(share * 100).toFixed(0)} %`);
}
