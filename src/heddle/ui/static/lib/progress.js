// Runs that are not done yet: how far each is, asked for until it ends.
import { h, onCleanup, signal } from "./dom.js";
import { postProject } from "./data.js";

const PAUSE = 1500;
const MOST = 12;

/**
 * Follow runs until they end; `open()` gives their ids, `onend` is called when one of them did. The result is a signal of
 * {id: {completed_rows, total_rows}}.
 */
export function followRuns(open, onend) {
  const state = signal(/** @type {Record<string, any>} */ ({}));
  let timer = 0;
  const look = async () => {
    const ids = document.hidden ? [] : open().slice(0, MOST);
    const answers = await Promise.all(ids.map((id) => postProject("/evaluations/status", { call_id: id }).catch(() => null)));
    const statuses = ids.map((id, index) => [id, answers[index]?.status]).filter(([, status]) => status);
    state.value = Object.fromEntries(statuses);
    if (statuses.some(([, { code }]) => code === "complete" || code === "failed")) onend();
    if (timer !== null) timer = setTimeout(look, PAUSE);
  };
  timer = setTimeout(look, 300);
  onCleanup(() => {
    clearTimeout(timer);
    timer = null;
  });
  return state;
}

/** A small bar of rows that are done. */
export function progressBar(status) {
  const { completed_rows: done = 0, total_rows: total = 0 } = status ?? {};
  const share = total ? Math.min(1, done / total) : 0;
  return h(
    "span.progress",
    { title: "Rows answered and scored" },
    h(
      "span",
      { role: "progressbar", "aria-label": "Rows done", "aria-valuenow": done, "aria-valuemin": 0, "aria-valuemax": total || 1 },
      h("i", { style: { width: `${share * 100}%` } }),
    ),
    h("span", total ? `${done} / ${total}` : "running"),
  );
}
