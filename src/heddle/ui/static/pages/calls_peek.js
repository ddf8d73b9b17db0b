// A preview of a call next to the list.
import { drawer } from "../lib/dialog.js";
import { computed, effect, h } from "../lib/dom.js";
import { link, path, query, setBeside } from "../lib/router.js";
import { CallDetail } from "./call_detail.js";

let open = null;

/** Show the call of the address in a drawer that follows the address until it is closed. */
export function openPeek(id, { rows, reload }) {
  if (open) return;
  let last = id;
  const before = document.activeElement;
  const close = drawer("Call", () => {
    const current = computed(() => query("peek") ?? last);
    effect(() => { last = current.value; });
    const trace = () => rows.value.find((row) => row.id === current.value)?.trace;
    effect(() => {
      if (!query("peek")) queueMicrotask(() => open?.());
    });
    return [h("p", () => h("a", { href: trace() ? link(path`/traces/${trace()}`, { call: current.value })
      : link(path`/calls/${current.value}`) }, "Open the whole trace")),
      CallDetail({ callId: () => current.value, onchange: (what) => what === "deleted" && (setBeside("peek", { peek: null, tab: null }),
        reload()) })];
  }, () => {
    open = null;
    if (query("peek")) setBeside("peek", { peek: null, tab: null });
  });
  open = close;
  // The list keeps the keyboard, so that the next row can be looked at.
  if (before instanceof HTMLElement && before !== document.body) before.focus({ preventScroll: true });
  else if (document.activeElement instanceof HTMLElement) document.activeElement.blur();
}
