// The conversations of a trace in the order in which they were held: its model calls as chats.
import { h, signal } from "../lib/dom.js";
import { lines } from "../lib/data.js";
import { attempt } from "../lib/dialog.js";
import { duration, int } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, kindChip, skeleton } from "../lib/parts.js";
import { chatView, hasChat } from "../lib/chat.js";

const AT_ONCE = 10;

/** The chats of the calls of a model, some at a time. */
export function traceChat(view) {
  const tree = view.tree.value;
  if (!tree) return skeleton();
  const models = Array.from({ length: tree.count }, (_, index) => index).filter((index) => tree.kind(index) === "llm");
  const box = h("div.tracechat", { tabindex: 0, role: "region", "aria-label": "Conversations of the trace" });
  if (!models.length)
    return empty({
      title: "No conversation",
      text: "No call of this trace went to a model. The tree shows what it did instead.",
    });
  const waiting = signal(false);
  let shown = 0;
  const more = h("div.actions", () =>
    waiting.value
      ? skeleton(3)
      : button(`Show ${int(Math.min(AT_ONCE, models.length - shown))} more of ${int(models.length - shown)}`, () => load()),
  );
  const load = () =>
    attempt(async () => {
      waiting.value = true;
      const part = models.slice(shown, shown + AT_ONCE);
      const found = await lines("/calls/stream_query", { filter: { call_ids: part.map((index) => tree.columns.id[index]) } });
      const calls = new Map(found.map((call) => [call.id, call]));
      more.remove();
      box.append(...part.map((index) => turn(view, tree, index, calls.get(tree.columns.id[index]))));
      shown += part.length;
      if (shown < models.length) box.append(more);
      waiting.value = false;
    });
  box.append(more);
  load();
  return box;
}

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
    call && hasChat(call) ? chatView(call) : h("p.dim", "This call holds no messages."),
  );
}
