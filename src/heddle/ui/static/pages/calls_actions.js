// What can be done with the calls that are selected.
import { post, postProject } from "../lib/data.js";
import { attempt, confirm, form, menu, toast } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { int } from "../lib/format.js";
import { button } from "../lib/parts.js";
import { path, projectId } from "../lib/router.js";

const AT_ONCE = 6;

/** The bar below the list while calls are selected. */
export function bulkBar(context) {
  const { selected, reload } = context;
  const ids = () => [...selected.peek()];
  const clear = () => { selected.value = new Set(); };
  const with_ = (load, run) => async () => run(await load());
  const dataset = with_(() => import("../lib/addtodataset.js"), async (module) => (await module.addToDataset(ids())) && clear());
  const queue = with_(() => import("../lib/addtoqueue.js"), async (module) => (await module.addToQueue(ids())) && clear());
  const compare = with_(() => import("./calls_compare.js"), (module) => module.compareCalls(ids()));
  const exported = with_(() => import("./calls_export.js"), (module) => module.exportCalls(context));
  const few = () => selected.value.size < 2 || selected.value.size > 4;
  return h("div.pager", { role: "region", "aria-label": "Selected calls", style: { "flex-wrap": "wrap" } },
    h("b", () => `${int(selected.value.size)} selected`), button("Clear", clear, { kind: "quiet" }), h("span.grow"),
      h("div.actions",
      button("Compare", compare, { iconName: "columns", disabled: few, title: "Two to four calls side by side" }),
      button("Add to dataset", dataset, { iconName: "data" }), button("Add to queue", queue, { iconName: "annotate" }),
      menu("Feedback", [["👍 Good", () => react(ids(), "👍", reload)], ["👎 Bad", () => react(ids(), "👎", reload)],
        ["Emoji…", () => askEmoji(ids(), reload)], ["Note…", () => askNote(ids(), reload)]], { iconName: "threads" }),
      button("Export", exported, { iconName: "download" }),
      button("Delete", () => remove(ids(), clear, reload), { kind: "danger", iconName: "trash" })));
}

async function give(ids, type, payload, reload) {
  const waiting = [...ids];
  const work = async () => {
    for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
      const about = `weave:///${projectId()}/call/${path`${id}`}`;
      await post("/feedback/create", { project_id: projectId(), weave_ref: about, feedback_type: type, payload });
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  toast(ids.length === 1 ? "Feedback given to 1 call" : `Feedback given to ${int(ids.length)} calls`);
  reload();
}

const react = (ids, emoji, reload) => attempt(() => give(ids, "wandb.reaction.1", { emoji }, reload));

function askEmoji(ids, reload) {
  return form("Emoji for the selected calls", [{ name: "emoji", label: "Emoji", required: true, maxlength: 16 }], {
    action: "Give", submit: ({ emoji }) => give(ids, "wandb.reaction.1", { emoji: emoji.trim() }, reload),
  });
}

function askNote(ids, reload) {
  return form("Note on the selected calls", [{ name: "note", label: "Note", type: "textarea", required: true }], {
    action: "Add note", submit: ({ note }) => give(ids, "wandb.note.1", { note }, reload),
  });
}

async function remove(ids, clear, reload) {
  const many = ids.length === 1 ? "this call" : `these ${int(ids.length)} calls`;
  if (!(await confirm(`Delete ${many}?`, "Everything that was called inside goes as well. This cannot be undone here."))) return;
  await attempt(async () => {
    const parts = Array.from({ length: Math.ceil(ids.length / 1000) },
      (_, index) => ids.slice(index * 1000, index * 1000 + 1000));
    let deleted = 0;
    for (const part of parts) deleted += (await postProject("/calls/delete", { call_ids: part })).num_deleted;
    toast(deleted === 1 ? "1 call deleted" : `${int(deleted)} calls deleted`);
    clear();
    reload();
  });
}
