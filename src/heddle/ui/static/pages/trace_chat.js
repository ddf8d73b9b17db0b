// The conversations of a trace in the order in which they were held: its model calls as chats.
import { h, signal, untrack } from "../lib/dom.js";
import { lines } from "../lib/data.js";
import { attempt } from "../lib/dialog.js";
import { duration, int } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, kindChip, skeleton } from "../lib/parts.js";
import { chatView, hasChat } from "../lib/chat.js";

const AT_ONCE = 10;
const MOST_TRIES = 20;

/**
 * The conversations of a trace, some calls at a time, once the whole trace is there: those of its model calls, else of
 * its agents, else of any call.
 */
export function traceChat(view) {
  return () => (view.done.value ? untrack(() => chatsOf(view, view.tree.value)) : skeleton());
}

function chatsOf(view, tree) {
  const all = Array.from({ length: tree.count }, (_, index) => index);
  const stages = [["llm"], ["agent"], ["chain", "fn"]].map((kinds) => all.filter((index) => kinds.includes(tree.kind(index))));
  const box = h("div.tracechat", { tabindex: 0, role: "region", "aria-label": "Conversations of the trace" });
  const waiting = signal(false);
  let [left, held, silent] = [[], 0, 0];
  const more = h("div.actions", () =>
    waiting.value ? skeleton(3) : button(`Show ${int(Math.min(AT_ONCE, left.length))} more of ${int(left.length)}`, () => load()),
  );
  const note = h("p.dim", { hidden: true });
  const read = async () => {
    const part = left.splice(0, AT_ONCE);
    const found = await lines("/calls/stream_query", {
      filter: { call_ids: part.map((index) => tree.columns.id[index]) },
      columns: ["exception"],
      include_conversation: true,
    });
    const calls = new Map(found.map((call) => [call.id, call]));
    const told = part.filter((index) => hasChat(calls.get(tree.columns.id[index])));
    more.before(...told.map((index) => turn(view, tree, index, calls.get(tree.columns.id[index]))));
    held += told.length;
    silent += part.length - told.length;
    return told.length;
  };
  const load = () =>
    attempt(async () => {
      waiting.value = true;
      for (let tries = 0; tries < MOST_TRIES; tries++) {
        if (!left.length && !held && stages.length) [left, silent] = [stages.shift(), 0];
        if (left.length ? await read() : held || !stages.length) break;
      }
      waiting.value = false;
      more.hidden = !left.length;
      note.hidden = !silent || !held;
      note.textContent = `${int(silent)} ${silent === 1 ? "call has" : "calls have"} no messages.`;
      if (!held && !left.length && !stages.length) box.replaceChildren(nothing());
    });
  box.append(more, note);
  load();
  return box;
}

const nothing = () =>
  empty({
    title: "No conversation",
    text: "No call of this trace has messages. See its calls in the tree.",
  });

function turn(view, tree, index, call) {
  const model = (tree.columns.usage.get(index)?.models ?? []).map((place) => tree.columns.models[place]).join(", ");
  return h(
    "article.turn",
    { class: () => (view.selected() === index ? "chosen" : "") },
    h(
      "header",
      h("button", { type: "button", dir: "auto", onclick: () => view.pick(index) }, tree.name(index)),
      kindChip(tree.kind(index)),
      h("span", model),
      h("span.grow"),
      h("span", duration(tree.columns.length[index] < 0 ? null : tree.columns.length[index] / 1e6)),
    ),
    chatView(call),
  );
}
