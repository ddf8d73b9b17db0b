// What can be done with the calls that are selected.
import { post, postProject } from "../lib/data.js";
import { attempt, confirm, form, menu, toast } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { selectionOf } from "../lib/filterquery.js";
import { int, plural } from "../lib/format.js";
import { changeCalls } from "../lib/changecalls.js";
import { button } from "../lib/parts.js";
import { go, link, path, projectId } from "../lib/router.js";

const AT_ONCE = 6;

/** The bar below the list while calls are selected. */
export function bulkBar(context) {
  const { selected, all, count, reload } = context;
  const ids = () => [...selected.peek()];
  const target = () => (all.peek() ? { selection: selectionOf(context.state()), count: count() } : ids());
  /** All that match as the public routes select it, which know neither cost nor counted tokens. */
  const plainTarget = () => {
    const found = target();
    if (Array.isArray(found) || (!found.selection.cost && found.selection.used === null)) return found;
    toast("Calls filtered by cost or counted tokens can only be added page by page", { kind: "error" });
    return null;
  };
  const clear = () => { selected.value = new Set(); };
  const with_ = (load, run) => async () => run(await load());
  const dataset = with_(() => import("../lib/addtodataset.js"), async (module) => plainTarget() && (await module.addToDataset(target())) && clear());
  const queue = with_(() => import("../lib/addtoqueue.js"), async (module) => plainTarget() && (await module.addToQueue(target())) && clear());
  const compare = () => go(link("/traces/compare", { calls: ids().join(",") }));
  const exported = with_(() => import("./calls_export.js"), (module) => module.exportCalls(context));
  const few = () => all.value || selected.value.size < 2 || selected.value.size > 5;
  return h("div.pager", { role: "region", "aria-label": "Selected calls", style: { "flex-wrap": "wrap" } },
    h("b", { role: "status" }, () => (all.value ? `All ${int(count())} that match selected` : `${int(selected.value.size)} selected`)),
      () => (!all.value && count() > selected.value.size && context.rows.value.every((row) => selected.value.has(row.id))
        ? button(`Select all ${int(count())} that match`, () => { all.value = true; }) : null),
      button("Clear", clear, { kind: "quiet" }), h("span.grow"),
      h("div.actions",
      button("Compare", compare, { iconName: "columns", disabled: few, title: "Compare two to five calls side by side" }),
      button("Add to dataset", dataset, { iconName: "data", needs: "write" }), button("Add to queue", queue, { iconName: "annotate", needs: "write" }),
      menu("Feedback", [["👍 Good", () => react(target(), "👍", reload)], ["👎 Bad", () => react(target(), "👎", reload)],
        ["Emoji…", () => askEmoji(target(), reload)], ["Note…", () => askNote(target(), reload)]], { iconName: "threads", needs: "annotate" }),
      button("Export", exported, { iconName: "download" }),
      button("Delete", () => remove(target(), clear, reload), { kind: "danger", iconName: "trash", needs: "delete" })));
}

async function give(target, type, payload, reload) {
  if (!Array.isArray(target)) {
    const done = await changeCalls(target, { type: "feedback", feedback_type: type, payload }, "Give feedback");
    if (done) toast(`Feedback given to ${plural(done.done, "call")}`);
    return reload();
  }
  const waiting = [...target];
  const work = async () => {
    for (let id = waiting.pop(); id !== undefined; id = waiting.pop()) {
      const about = `weave:///${projectId()}/call/${path`${id}`}`;
      await post("/feedback/create", { project_id: projectId(), weave_ref: about, feedback_type: type, payload });
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  toast(`Feedback given to ${plural(target.length, "call")}`);
  reload();
}

const react = (target, emoji, reload) => attempt(() => give(target, "wandb.reaction.1", { emoji }, reload));

function askEmoji(target, reload) {
  return form("Emoji for the selected calls", [{ name: "emoji", label: "Emoji", required: true, maxlength: 16 }], {
    action: "Give", submit: ({ emoji }) => give(target, "wandb.reaction.1", { emoji: emoji.trim() }, reload),
  });
}

function askNote(target, reload) {
  return form("Note on the selected calls", [{ name: "note", label: "Note", type: "textarea", required: true }], {
    action: "Add note", submit: ({ note }) => give(target, "wandb.note.1", { note }, reload),
  });
}

async function remove(target, clear, reload) {
  const ids = Array.isArray(target) ? target : null;
  const many = ids?.length === 1 ? "this call" : ids ? `these ${plural(ids.length, "call")}` : `all ${plural(target.count, "call")} that match`;
  if (!(await confirm(`Delete ${many}?`, "Child calls are deleted too. This cannot be undone."))) return;
  await attempt(async () => {
    let deleted = 0;
    if (!ids) deleted = (await changeCalls(target, { type: "delete" }, "Delete calls"))?.done ?? 0;
    for (let from = 0; from < (ids?.length ?? 0); from += 1000) {
      deleted += (await postProject("/calls/delete", { call_ids: ids.slice(from, from + 1000) })).num_deleted;
    }
    if (deleted) toast(`${plural(deleted, "call")} deleted`);
    clear();
    reload();
  });
}
