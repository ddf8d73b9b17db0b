// How many calls arrived since the list was read; the list stays unchanged until the user asks for them.
import { post } from "../lib/data.js";
import { effect, h, onCleanup, signal } from "../lib/dom.js";
import { publicSelection } from "../lib/filterquery.js";
import { selectionOf } from "../lib/filters.js";
import { int } from "../lib/format.js";
import { button } from "../lib/parts.js";
import { projectId, query } from "../lib/router.js";
import { refreshTime } from "../lib/timerange.js";

const POLL = 10_000;
const MOST = 1000;

/** The pill; it looks now and every ten seconds while the page is seen and shows its newest calls. */
export function newCalls({ rows, state, reload }) {
  const found = signal(0);
  const look = async () => {
    const isNewest = !query("after") && !query("before") && !query("sort") && state().to === null;
    const chosen = await selectionOf(state());
    if (document.hidden || !isNewest || chosen.cost) return;
    const newest = (rows.peek()[0]?.at ?? 0) / 1e6;
    const since = { $gt: [{ $getField: "started_at" }, { $literal: newest }] };
    const answer = await post("/calls/query_stats", { project_id: projectId(), ...publicSelection(chosen, [since]),
      limit: MOST });
    if (answer.count && !newest) reload();
    else found.value = answer.count;
  };
  const quietly = () => look().catch(() => {});
  const timer = setInterval(quietly, POLL);
  onCleanup(() => clearInterval(timer));
  quietly();
  effect(() => {
    rows.value;
    found.value = 0;
  });
  const show = () => {
    refreshTime();
    reload();
  };
  return h("span", { role: "status" }, () => (found.value
    ? button(`${found.value >= MOST ? `${int(MOST)} or more` : int(found.value)} new ${found.value === 1 ? "call" : "calls"}`,
      show, { iconName: "refresh" }) : null));
}
