// One conversation with agents: what users, agents and tools said, turn by turn.
import { h, signal } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { compact, duration, int, money, plural } from "../lib/format.js";
import { messageCard, textNode, toolCard } from "../lib/chat.js";
import { modeSwitch, valueView } from "../lib/value.js";
import { storedNode } from "../lib/media.js";
import { feedbackBar } from "../lib/feedbackbar.js";
import { parsed, textMessage } from "../lib/messages.js";
import { copyButton, empty, refHref, stat } from "../lib/panels.js";
import { dot, icon, loaded, page, timeNode, title } from "../lib/parts.js";
import { link, path, projectId, query } from "../lib/router.js";
import { turnPager, turnSteps } from "../lib/turns.js";

const PAGE = 25;

/** The page of the conversation that the path names; without `page` its newest turns. */
export default function Conversation({ thread: id }) {
  title(id);
  const total = signal(0);
  const pages = () => Math.max(1, Math.ceil(total.value / PAGE));
  const number = () => Math.min(pages(), Number(query("page")) || pages());
  const state = resource(
    () => ({ id, page: Number(query("page")) || 0 }),
    (asked, abort) => read(asked, total, abort),
  );
  const settled = turnSteps(
    () => box,
    number,
    pages,
    () => state.busy.peek(),
  );
  const show = (found) => {
    settled();
    return found.turns.length
      ? h(
          "div.thread",
          found.turns.map((turn, index) => turnSection(turn, found.first + index)),
        )
      : empty({
          title: "Conversation not found",
          text: "Its spans may not have arrived yet, or may be past the project's retention.",
          action: h("a.button", { href: link("/agents/conversations") }, "All conversations"),
        });
  };
  const box = h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Turns" }, loaded(state, show));
  return page(
    {
      crumbs: [
        ["Threads", link("/threads")],
        ["Agent conversations", link("/agents/conversations")],
      ],
      title: h("span", { title: id, dir: "auto" }, id),
      extra: copyButton(() => id, "Copy conversation id"),
      actions: [() => state.data.value && figures(state.data.value, total.value), modeSwitch()],
    },
    [box, () => pages() > 1 && turnPager(number, pages, PAGE, () => total.value)],
    { fixed: true },
  );
}

/** A page of turns; the API counts from the newest, people from the oldest. */
async function read({ id, page: number }, total, abort) {
  const ask = (limit, offset) =>
    postProject(
      "/agents/conversations/chat",
      { conversation_id: id, limit, offset, include_feedback: true, include_model_tool_calls: false },
      abort,
    );
  const count = number ? total.peek() || (await ask(0, 0)).total_turns : 0;
  const from = number ? Math.max(0, count - number * PAGE) : 0;
  const limit = number ? Math.min(PAGE, count - (number - 1) * PAGE) : PAGE;
  const found = await ask(limit, from);
  if (!number && found.total_turns > PAGE && found.total_turns % PAGE)
    found.turns = found.turns.slice(-(found.total_turns % PAGE));
  total.value = found.total_turns;
  return { ...found, first: found.total_turns - from - found.turns.length + 1 };
}

function figures(found, total) {
  const tokens = found.turns.reduce((sum, turn) => sum + turn.total_input_tokens + turn.total_output_tokens, 0);
  const part = total > found.turns.length ? " shown" : "";
  return [
    stat("Turns", int(total)),
    tokens ? stat(`Tokens${part}`, compact(tokens)) : null,
    found.total_cost_usd === null ? null : stat(`Cost${part}`, money(found.total_cost_usd)),
  ];
}

function turnSection(turn, number) {
  const tokens = turn.total_input_tokens + turn.total_output_tokens;
  const told = [
    duration(!turn.total_duration_ms ? null : turn.total_duration_ms / 1000),
    tokens ? plural(tokens, "token", "tokens", compact) : "",
    turn.total_cost_usd ? money(turn.total_cost_usd) : "",
  ]
    .filter(Boolean)
    .join(" · ");
  return h(
    "section.turn",
    {
      "aria-label": `Turn ${number}`,
      "data-turn": turn.trace_id,
      tabindex: -1,
      class: () => (query("turn") === turn.trace_id ? "current" : ""),
    },
    h(
      "header",
      dot(turn.status_code === "ERROR" ? "error" : "success"),
      h("h2", `Turn ${int(number)}`),
      h(
        "a.ref.one-line",
        { href: link(path`/traces/${turn.trace_id}`), title: "Open the trace" },
        turn.agent_name || turn.root_span_name || "Trace",
      ),
      turn.agent_version ? h("span.badge", `version ${turn.agent_version}`) : null,
      h("span.faint", timeNode(turn.started_at)),
      h("span.faint", told),
      h("span.grow"),
      feedbackBar(`weave:///${projectId()}/agent_turn/${turn.trace_id}`, turn.feedback ?? []),
    ),
    h("div.messages", turn.messages.map(eventNode)),
  );
}

const EVENTS = {
  user_message: (event) => messageCard(textMessage("user", event.user_message.text), { extra: media(event.user_message) }),
  assistant_message: assistant,
  tool_call: (event) => {
    const call = { type: "tool_call", name: event.tool_call.tool_name, arguments: parsed(event.tool_call.tool_arguments ?? "") };
    const told = event.tool_call.tool_result;
    const result = told === null ? null : { type: "tool_call_response", response: textMessage("tool", told).parts };
    return h("div.message", { "data-role": "tool" }, toolCard(call, result, projectId()), media(event.tool_call));
  },
  agent_start: (event) => {
    const told = event.agent_start.system_instructions;
    const label = [
      icon("models"),
      h("b", event.agent_name || "agent"),
      event.agent_version && h("span.badge", `version ${event.agent_version}`),
      event.agent_start.model && h("span.faint", event.agent_start.model),
    ];
    return told
      ? h("details.agentstart", h("summary", label, h("span.faint", "instructions")), textNode(told))
      : h("p.agentstart", label);
  },
  agent_handoff: (event) => h("p.agentstart", icon("models"), "Handed over to ", h("b", event.agent_name || "another agent")),
  context_compacted: (event) => {
    const {
      compaction_summary: summary,
      compaction_items_before: before,
      compaction_items_after: after,
    } = event.context_compacted;
    return h(
      "details.agentstart",
      h("summary", icon("filter"), `Context compacted${before === null ? "" : `: ${int(before)} to ${plural(after, "item")}`}`),
      textNode(summary ?? ""),
    );
  },
};

function eventNode(event) {
  const node = EVENTS[event.type]?.(event) ?? null;
  return [
    node,
    event.status_code === "ERROR"
      ? h("p.problem", `${event.error_type || "Error"}: ${event.status_message || "no message"}`)
      : null,
  ];
}

function assistant(event) {
  const said = event.assistant_message;
  const thought = said.reasoning_content ? [{ type: "reasoning", content: said.reasoning_content }] : [];
  const answer = { ...textMessage("assistant", said.text), ...(event.agent_name ? { name: event.agent_name } : {}) };
  const tokens = (said.input_tokens ?? 0) + (said.output_tokens ?? 0);
  const told = [
    said.model,
    tokens ? plural(tokens, "token", "tokens", compact) : "",
    duration(!said.duration_ms ? null : said.duration_ms / 1000),
  ]
    .filter(Boolean)
    .join(" · ");
  return [
    messageCard({ ...answer, parts: [...thought, ...answer.parts] }, { extra: h("span.faint.one-line", told) }),
    media(said),
  ];
}

/** Stored pictures and sounds that an event names. */
function media({ content_refs: refs = [] }) {
  const digests = refs.map((ref) => [ref, refHref(ref)]);
  return (
    digests.length > 0 &&
    h(
      "div.attached",
      digests.map(([ref, href]) =>
        href ? valueView(ref) : storedNode({ content: ref.split(":").at(-1) }, projectId()),
      ),
    )
  );
}
