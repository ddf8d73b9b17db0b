// Agents and their conversations, as agent spans tell of them.
import { computed, h } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { ago, compact, duration, int, money, oneLine } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { loaded, timeNode } from "../lib/parts.js";
import { link, path, projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { pager, table } from "../lib/table.js";

const PAGE = 50;
const pageNumber = () => Math.max(1, Number(query("page")) || 1);
const turn = (by) => () => setQuery({ page: pageNumber() + by === 1 ? null : pageNumber() + by }, false);
const pages = (total, noun) =>
  pager(
    () => `${int(total())} ${total() === 1 ? noun : `${noun}s`}`,
    () => (pageNumber() > 1 ? turn(-1) : null),
    () => (pageNumber() * PAGE < total() ? turn(1) : null),
  );

/** The conversations that were spoken with agents. */
export function conversationsView() {
  const state = resource(
    () => ({ search: query("search") ?? "", agent: query("agent") ?? "", page: pageNumber() }),
    conversations,
  );
  const rows = () => state.data.value?.rows ?? [];
  const total = () => state.data.value?.total ?? 0;
  const list = h(
    "div.tablebox.conversationlist",
    { tabindex: 0, role: "region", "aria-label": "Agent conversations" },
    table({
      columns: () => CONVERSATIONS,
      rows,
      key: (row) => row.id,
      label: "Agent conversations",
      busy: () => state.busy.value,
      href: (row) => addressOf(row.id),
    }),
  );
  const hasNone = computed(() => Boolean(state.data.value) && !rows().length);
  return [
    loaded(state, () => null),
    () =>
      hasNone.value
        ? query("search")
          ? empty({ title: "Nothing found", text: "The search covers what users, agents and tools said." })
          : noAgents()
        : state.data.value && [list, pages(total, "conversation")],
  ];
}

const addressOf = (id) => link(path`/agents/conversations/${id}`);

async function conversations({ search, agent, page }, abort) {
  const place = { limit: PAGE, offset: (page - 1) * PAGE };
  if (search) {
    const found = await postProject("/agents/search", { query: search, ...place }, abort);
    return { total: found.total_conversations, rows: found.results.map(foundRow) };
  }
  const asked = (name, value) => ({ $eq: [{ $getField: name }, { $literal: value }] });
  const spoken = { $not: [asked("conversation_id", "")] };
  const query_ = { $expr: agent ? { $and: [spoken, asked("agent_name", agent)] } : spoken };
  const found = await postProject(
    "/agents/spans/query",
    { group_by: [{ key: "conversation_id" }], query: query_, include_costs: true, ...place },
    abort,
  );
  return { total: found.total_count, rows: found.groups.map(groupRow) };
}

const foundRow = (item) => ({
  id: item.conversation_id,
  name: item.conversation_name,
  agents: [item.agent_name].filter(Boolean),
  active: item.last_activity,
  last: item.matched_messages[0]?.content_preview ?? "",
});

const groupRow = (group) => ({
  id: group.group_keys.conversation_id,
  name: group.conversation_names[0] ?? "",
  agents: group.agent_names,
  spans: group.span_count,
  tokens: group.total_input_tokens + group.total_output_tokens,
  cost: group.total_cost_usd,
  errors: group.error_count,
  started: group.first_seen,
  active: group.last_seen,
  last: textOf(group.last_message ?? group.first_message),
});

const textOf = (preview) => preview?.text ?? preview?.content ?? preview?.content_preview ?? "";

const CONVERSATIONS = [
  {
    key: "name",
    label: "Conversation",
    width: "24%",
    render: (row) => h("a.one-line", { href: addressOf(row.id), title: row.id, dir: "auto" }, row.name || row.id),
  },
  {
    key: "last",
    label: "Last message",
    render: (row) => h("span.dim", { dir: "auto", title: row.last }, oneLine(row.last, 200)),
  },
  {
    key: "agents",
    label: "Agents",
    width: "15%",
    render: (row) => h("span", { title: row.agents.join(", ") }, row.agents.join(", ")),
  },
  {
    key: "spans",
    label: "Spans",
    width: "112px",
    number: true,
    render: (row) => [row.errors ? h("span.badge.error", `${int(row.errors)} failed`) : null, " ", int(row.spans)],
  },
  { key: "tokens", label: "Tokens", width: "76px", number: true, render: (row) => (row.tokens ? compact(row.tokens) : "") },
  { key: "cost", label: "Cost", width: "88px", number: true, render: (row) => money(row.cost) },
  {
    key: "active",
    label: "Last active",
    width: "132px",
    number: true,
    render: (row) => timeNode(row.active, ago),
  },
];

/** The agents, each with its versions on demand. */
export function agentsView() {
  const state = resource(() => ["/agents/query", { limit: PAGE, offset: (pageNumber() - 1) * PAGE, include_costs: true }]);
  const rows = () => state.data.value?.agents ?? [];
  const total = () => state.data.value?.total_count ?? 0;
  const chosen = computed(() => query("agent"));
  const list = h(
    "div.tablebox",
    { tabindex: 0, role: "region", "aria-label": "Agents" },
    table({
      columns: () => AGENTS,
      rows,
      key: (row) => row.agent_name,
      label: "Agents",
      busy: () => state.busy.value,
      onopen: (row) => setQuery({ agent: chosen.value === row.agent_name ? null : row.agent_name }),
    }),
    () => (chosen.value ? versionsOf(chosen.value) : null),
  );
  const hasNone = computed(() => Boolean(state.data.value) && !rows().length);
  return [loaded(state, () => null), () => (hasNone.value ? noAgents() : state.data.value && [list, pages(total, "agent")])];
}

const figures = [
  { key: "runs", label: "Runs", number: true, render: (row) => int(row.invocation_count) },
  {
    key: "errors",
    label: "Errors",
    number: true,
    render: (row) => (row.error_count ? h("span.badge.error", int(row.error_count)) : "0"),
  },
  { key: "in", label: "Tokens in", number: true, render: (row) => compact(row.total_input_tokens) },
  { key: "out", label: "Tokens out", number: true, render: (row) => compact(row.total_output_tokens) },
  { key: "cost", label: "Cost", number: true, render: (row) => money(row.total_cost_usd) },
  {
    key: "mean",
    label: "Mean time",
    number: true,
    render: (row) => (row.invocation_count ? duration(row.total_duration_ms / 1000 / row.invocation_count) : ""),
  },
  {
    key: "seen",
    label: "Last seen",
    number: true,
    render: (row) => timeNode(row.last_seen, ago),
  },
];
const AGENTS = [
  {
    key: "name",
    label: "Agent",
    width: "30%",
    render: (row) => h("b.one-line", { title: row.agent_name, dir: "auto" }, row.agent_name || "unnamed"),
  },
  ...figures,
  {
    key: "open",
    label: "Conversations",
    render: (row) => h("a.ref", { href: link("/agents/conversations", { agent: row.agent_name }) }, "Show"),
  },
];
const VERSIONS = [
  {
    key: "version",
    label: "Version",
    width: "30%",
    render: (row) => h("b.one-line", { title: row.agent_version }, row.agent_version || "no version"),
  },
  ...figures,
];

function versionsOf(name) {
  const state = resource(() => ["/agents/agent-versions/query", { agent_name: name, limit: 200, include_costs: true }]);
  return h(
    "section.agentversions",
    { "aria-label": `Versions of ${name}` },
    h("h2", "Versions of ", h("bdi", name)),
    loaded(state, (found) =>
      table({
        columns: () => VERSIONS,
        rows: () => found.versions,
        key: (row) => row.agent_version,
        label: `Versions of ${name}`,
        keyboard: false,
      }),
    ),
  );
}

function noAgents() {
  return empty({
    title: "No agents yet",
    text:
      "Agents report through the conversation API of the SDK, or as OpenTelemetry spans with the GenAI conventions " +
      "(invoke_agent, chat, execute_tool).",
    code: [
      "import os, weave",
      "from weave.conversation import start_conversation",
      `os.environ["WANDB_BASE_URL"] = "${serverAddress()}"`,
      `weave.init("${projectId()}")`,
      "",
      'with start_conversation(agent_name="guide", model="any", conversation_id="tour") as conversation:',
      '    with conversation.start_turn(user_message="Where is the tower?") as turn, turn.start_llm() as answer:',
      '        answer.output("In the north.")',
    ].join("\n"),
    action: h("p", "Any OpenTelemetry exporter works, too: ", h("code", serverAddress())),
  });
}
