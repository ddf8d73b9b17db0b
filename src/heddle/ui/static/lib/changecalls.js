// A change of all calls that match, which the server makes as a job: how far it is, and a way to end it.
import { postProject } from "./data.js";
import { dialog } from "./dialog.js";
import { h, signal } from "./dom.js";
import { int, plural } from "./format.js";
import { button } from "./parts.js";

const POLL = 400;

/**
 * Change the calls of a selection (`{selection, count}`) by an action of the server; resolves to its result, or null when
 * it was refused, failed, was cancelled or the dialog was left: then the dialog has said how many calls were changed.
 * @returns {Promise<any>}
 */
export async function changeCalls({ selection }, action, heading) {
  const { id, of } = await postProject("/_ui/api/calls/change", { ...selection, action });
  return dialog(heading, (close) => {
    const state = signal(/** @type {any} */ ({ state: "queued", of, done: 0 }));
    const look = async () => {
      try {
        const { jobs } = await postProject("/evaluations/jobs/query", { kinds: ["change_calls"] });
        const job = jobs.find((found) => found.id === id);
        if (!job) throw new Error("The server no longer knows this job");
        state.value = { ...job, ...job.progress };
        if (state.value.state === "succeeded") close(state.value.result);
        else if (isOpen(state.value)) setTimeout(look, POLL);
      } catch (error) {
        state.value = { ...state.peek(), problem: error.message };
        setTimeout(look, 10 * POLL);
      }
    };
    look();
    const cancel = () => postProject("/evaluations/cancel", { call_id: id });
    return [
      h("progress", { max: () => state.value.of || of, value: () => state.value.done ?? 0, "aria-label": heading,
        style: { width: "100%" } }),
      h("p", { role: "status" }, () => told(state.value, of)),
      h("div.actions", () => (isOpen(state.value) ? button("Cancel", cancel) : button("Close", () => close()))),
    ];
  });
}

const isOpen = ({ state }) => state === "queued" || state === "running";

function told({ state, done = 0, of, error, problem }, expected) {
  const share = `${int(done)} of ${plural(of ?? expected, "call")}`;
  if (problem) return `${share}; ${problem}`;
  if (state === "queued") return "Waiting for other jobs of this server";
  if (state === "running") return share;
  return state === "cancelled" ? `Cancelled after ${share}` : `Failed after ${share}: ${error}`;
}
