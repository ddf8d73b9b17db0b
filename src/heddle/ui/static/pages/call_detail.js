// One call in full: what it was given, what it answered, what people and scorers said of it. Pages, drawers and the
// annotation page share it.
import { h, onCleanup } from "../lib/dom.js";
import { lines, resource } from "../lib/data.js";
import { duration, int, money, secondsBetween, when } from "../lib/format.js";
import { rawJson } from "../lib/json.js";
import { valueSection } from "../lib/value.js";
import { problemView } from "../lib/problem.js";
import { empty, facts, refLink, tabs } from "../lib/panels.js";
import { button, dot, icon, kindChip, later, loaded, timeNode } from "../lib/parts.js";
import { link, loadStyle, path } from "../lib/router.js";
import { callName, kindOf, statusOf, usageOf } from "../lib/spans.js";
import { chatView, hasChat } from "../lib/chat.js";
import { callActions } from "./call_actions.js";

const AGAIN_AFTER = 3000;

/**
 * A call with tabs; `callId` gives its id (or null) and is followed. `onchange` is called with "renamed", "deleted" or
 * "feedback". With `actions: false` it can only be read. `below` tells, where it is known, what a call used with all
 * calls below it, `before` the model's answer that led to a call.
 * @param {{callId: () => string|null, onchange?: (what: string) => void, actions?: boolean,
 *   below?: (id: string) => {input: number, output: number, cost: number|null}|null,
 *   before?: (id: string) => {id: string, name: string}|null}} options
 */
export function CallDetail({ callId, onchange = () => {}, actions = true, below = () => null, before = () => null }) {
  loadStyle("pages/call_detail");
  const state = resource(() => callId(), readCall());
  return h(
    "div.calldetail",
    { "aria-busy": () => String(state.busy.value) },
    loaded(state, (found) => {
      if (!found.call) return callId() ? missing(found.id, state.reload) : null;
      return detail(found.call, { onchange, actions, below, before, reload: state.reload });
    }),
  );
}

/** Reads a call with costs and feedback; what did not change stays the same object, so that nothing is drawn again. */
function readCall() {
  let last = { text: "", value: null };
  return async (id, abort) => {
    const body = { filter: { call_ids: [id] }, include_costs: true, include_feedback: true, include_conversation: true,
      limit: 1 };
    const value = { id, call: (await lines("/calls/stream_query", body, undefined, abort))[0] ?? null };
    const text = JSON.stringify(value);
    if (text !== last.text) last = { text, value };
    return last.value;
  };
}

function missing(id, reload) {
  return empty({
    title: "Call not found",
    text: `This project has no call ${id}. It may have been deleted, or may not have arrived yet.`,
    action: button("Try again", reload, { iconName: "refresh" }),
  });
}

function detail(call, { onchange, actions, below, before, reload }) {
  if (statusOf(call) === "running") {
    const timer = setInterval(() => document.hidden || reload(), AGAIN_AFTER);
    onCleanup(() => clearInterval(timer));
  }
  const told = (what) => {
    if (what !== "deleted") reload();
    onchange(what);
  };
  return [
    heading(call, actions, told),
    actions ? callActions(call).bar : null,
    factsOf(call),
    problemView(call.exception),
    actions ? () => ledBy(call, before(call.id)) : null,
    tabs("Call", entries(call, actions, told, below)),
  ].flat();
}

function heading(call, actions, told) {
  const name = callName(call);
  return h(
    "div.callhead",
    dot(statusOf(call)),
    h("h2", { title: name, dir: "auto" }, name),
    kindChip(kindOf(call)),
    h("span.grow"),
    actions ? callActions(call, told).icons : null,
  );
}

function factsOf(call) {
  const used = usageOf(call);
  const models = used.rows.map((row) => row.model).join(", ");
  const tokens = used.input + used.output;
  return facts([
    ["Started", h("span", { title: call.started_at }, when(call.started_at))],
    ["Latency", call.ended_at ? duration(secondsBetween(call.started_at, call.ended_at)) : "running"],
    ["Model", models],
    ["Tokens", tokens ? `${int(used.input)} in · ${int(used.output)} out` : ""],
    ["Cost", used.cost === null ? "" : money(used.cost)],
    ["User", call.wb_user_id],
    ["Tags", Array.isArray(call.attributes?.tags) ? call.attributes.tags.join(", ") : ""],
    ["Thread", call.thread_id ? h("a.ref", { href: link(path`/threads/${call.thread_id}`) }, call.thread_id) : ""],
    ["Op", call.op_name?.startsWith("weave:") ? refLink(call.op_name) : ""],
  ]);
}

/** The way from a step to the prompt that asked for it. */
function ledBy(call, answer) {
  if (!answer) return null;
  return h(
    "p.ledby",
    h("span", "Requested by ", h("a.ref", { href: link(path`/traces/${call.trace_id}`, { call: answer.id }), dir: "auto" },
      answer.name)),
    h("a.button", { href: link("/playground", { call: answer.id }) }, icon("play"), "Open its prompt in playground"),
  );
}

function entries(call, actions, told, below) {
  const said = call.summary?.weave?.feedback?.length;
  const lazy =
    (module, name, ...more) =>
    () =>
      h("div.tabcontent", later(module, (found) => found[name](call, ...more)));
  return [
    hasChat(call) && ["chat", "Chat", () => chatView(call)],
    ["io", "Inputs & output", () => inputsAndOutput(call)],
    [
      "feedback",
      said ? `Scores & feedback ${said}` : "Scores & feedback",
      lazy(() => import("./call_feedback.js"), "callFeedback", actions, told),
    ],
    ["usage", "Usage", lazy(() => import("./call_usage.js"), "callUsage", below)],
    ["attributes", "Attributes", () => attributes(call)],
    ["code", "Code", lazy(() => import("./call_code.js"), "callCode")],
    ["raw", "Raw", () => rawJson(call)],
  ].filter(Boolean);
}

function inputsAndOutput(call) {
  const project = call.project_id;
  return h(
    "div.inputsoutput",
    valueSection("Inputs", call.inputs ?? {}, { project, nothing: "This call has no inputs." }),
    valueSection("Output", call.output, { project, nothing: noOutput(call) }),
  );
}

function noOutput(call) {
  if (call.output && typeof call.output === "object") return "";
  if (statusOf(call) === "running") return "It is still running.";
  return call.exception ? "It failed before returning an output." : "It returned nothing (null).";
}

function attributes(call) {
  const own = call.attributes ?? {};
  const summary = Object.fromEntries(Object.entries(call.summary ?? {}).filter(([name]) => name !== "weave" && name !== "usage"));
  return h(
    "div.inputsoutput",
    facts([
      ["Call", call.id],
      ["Trace", call.trace_id],
      ["Parent", call.parent_id],
      ["Turn", call.turn_id],
      ["Run", call.wb_run_id],
      ["Ended", timeNode(call.ended_at)],
      ["Deleted after", timeNode(call.expire_at)],
    ]),
    valueSection("Attributes", own, { nothing: "No attributes. Add some with weave.attributes({…})." }),
    Object.keys(summary).length ? valueSection("Summary", summary) : null,
  );
}
