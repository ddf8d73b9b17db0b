// One thread: its turns as a chat, each a call that opens as its trace.
import { h, signal } from "../lib/dom.js";
import { get, lines, resource } from "../lib/data.js";
import { menu } from "../lib/dialog.js";
import { addToDataset } from "../lib/addtodataset.js";
import { addToQueue } from "../lib/addtoqueue.js";
import { compact, duration, int, money, nameOf, plural, secondsBetween } from "../lib/format.js";
import { chatView, messageList } from "../lib/chat.js";
import { feedbackBar } from "../lib/feedbackbar.js";
import { turnOf } from "../lib/messages.js";
import { problemView } from "../lib/problem.js";
import { copyButton, empty, stat } from "../lib/panels.js";
import { button, dot, loaded, page, timeNode, title } from "../lib/parts.js";
import { go, link, path, query } from "../lib/router.js";
import { threadsAddress, turnPager, turnSteps } from "../lib/turns.js";
import { json } from "../lib/json.js";
import { mode, modeSwitch } from "../lib/value.js";

const PAGE = 25;
const COLUMNS = [
  "id",
  "project_id",
  "trace_id",
  "turn_id",
  "op_name",
  "display_name",
  "started_at",
  "ended_at",
  "exception",
  "summary",
  "wb_user_id",
];

/** The page of the thread that the path names; `page` counts from the oldest turns, without it the newest are shown. */
export default function Thread({ thread }) {
  title(thread);
  const state = resource(
    () => threadsAddress({ thread, limit: "1" }),
    async (address, abort) => (await get(address, abort)).threads[0] ?? {},
  );
  const pages = () => Math.max(1, Math.ceil((state.data.value?.turns ?? 0) / PAGE));
  const number = () => Math.min(pages(), Number(query("page")) || pages());
  const turns = resource(() => (state.data.value?.turns ? { thread, offset: (number() - 1) * PAGE } : null), turnCalls);
  const settled = turnSteps(
    () => box,
    number,
    pages,
    () => turns.busy.peek(),
  );
  const list = ({ calls, first }) => {
    settled();
    return h(
      "div.thread",
      calls.map((call, index) => turnSection(call, first + index)),
    );
  };
  const box = h(
    "div.scroll",
    { tabindex: 0, role: "region", "aria-label": "Turns" },
    loaded(state, (found) => (found.turns ? loaded(turns, list) : gone(thread))),
  );
  return page(
    {
      crumbs: [["Threads", link("/threads")]],
      title: h("span", { title: thread, dir: "auto" }, thread),
      extra: copyButton(() => thread, "Copy thread name"),
      actions: [() => state.data.value?.turns && figures(state.data.value), modeSwitch()],
    },
    [box, () => pages() > 1 && turnPager(number, pages, PAGE, () => state.data.value.turns)],
    { fixed: true },
  );
}

const figures = (found) => [
  stat("Turns", int(found.turns)),
  stat("Time", duration(found.seconds)),
  found.tokens ? stat("Tokens", compact(found.tokens)) : null,
  found.dollars !== null ? stat("Cost", money(found.dollars)) : null,
  found.errors ? stat("Failed", h("span.worse", int(found.errors))) : null,
];

const gone = (thread) =>
  empty({
    title: "This thread has no turns",
    text: `This project has no turns of ${thread}. Its calls may have been deleted, or be past the project's retention.`,
  });

async function turnCalls({ thread, offset }, abort) {
  const isTurn = { $expr: { $eq: [{ $getField: "id" }, { $getField: "turn_id" }] } };
  const calls = await lines(
    "/calls/stream_query",
    {
      filter: { thread_ids: [thread] },
      query: isTurn,
      sort_by: [{ field: "started_at", direction: "asc" }],
      limit: PAGE,
      offset,
      columns: COLUMNS,
      include_feedback: true,
      include_costs: true,
      include_conversation: true,
    },
    undefined,
    abort,
  );
  return { calls, first: offset + 1 };
}

function turnSection(call, number) {
  const whole = signal(false);
  const status = call.exception ? "error" : call.ended_at ? "success" : "running";
  const { messages, choice, isWhole } = turnOf(call.conversation);
  return h(
    "section.turn",
    {
      "aria-label": `Turn ${number}`,
      "data-turn": call.id,
      tabindex: -1,
      class: () => (query("turn") === call.id ? "current" : ""),
    },
    h(
      "header",
      dot(status),
      h("h2", `Turn ${int(number)}`),
      h(
        "a.ref.one-line",
        { href: link(path`/traces/${call.trace_id}`, { call: call.id }), title: "Open the trace" },
        call.display_name || nameOf(call.op_name),
      ),
      h("span.faint", timeNode(call.started_at)),
      h("span.faint", figuresOf(call)),
      h("span.grow"),
      !isWhole
        ? button(
            "Whole chat",
            () => {
              whole.value = !whole.value;
            },
            { kind: "quiet", "aria-pressed": () => String(whole.value) },
          )
        : null,
      feedbackBar(`weave:///${call.project_id}/call/${call.id}`, call.summary?.weave?.feedback ?? []),
      more(call),
    ),
    () =>
      mode.value === "json"
        ? json(call.conversation, 4)
        : whole.value
          ? chatView(call, { bar: false })
          : messageList(messages, { project: call.project_id, choice }),
    call.exception && !whole.peek() ? problemView(call.exception) : null,
  );
}

const more = (call) =>
  menu(
    null,
    [
      ["Open the trace", () => go(link(path`/traces/${call.trace_id}`, { call: call.id })), { iconName: "calls" }],
      ["Open in the playground", () => go(link("/playground", { call: call.id })), { iconName: "play" }],
      ["Add to a dataset", () => addToDataset([call.id]), { iconName: "data", needs: "write" }],
      ["Add to a queue", () => addToQueue([call.id]), { iconName: "annotate", needs: "write" }],
    ],
    { kind: "quiet", label: "More" },
  );

function figuresOf(call) {
  const usage = Object.values(call.summary?.usage ?? {});
  const tokens = usage.reduce(
    (sum, entry) =>
      sum +
      (entry.total_tokens ??
        (entry.prompt_tokens ?? entry.input_tokens ?? 0) + (entry.completion_tokens ?? entry.output_tokens ?? 0)),
    0,
  );
  return [duration(secondsBetween(call.started_at, call.ended_at)), tokens ? plural(tokens, "token", "tokens", compact) : ""]
    .filter(Boolean)
    .join(" · ");
}
