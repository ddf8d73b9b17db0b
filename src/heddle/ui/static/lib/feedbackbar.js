// What people said of a call, a turn or a conversation, and three ways to say more, in one line.
import { post } from "./data.js";
import { attempt, form } from "./dialog.js";
import { computed, h, signal } from "./dom.js";
import { plural } from "./format.js";
import { button, icon } from "./parts.js";
import { projectId } from "./router.js";

/**
 * Thumbs and notes about what a ref names.
 * @param {string} about a ref, `weave:///entity/project/call/…`
 * @param {any[]} given the feedback that is stored already
 */
export function feedbackBar(about, given = []) {
  const entries = signal(given);
  const add = async (type, payload) => {
    const made = await post("/feedback/create", { project_id: projectId(), weave_ref: about, feedback_type: type, payload });
    entries.value = [...entries.value, { id: made.id, feedback_type: type, payload }];
  };
  const remove = async (entry) => {
    await post("/feedback/purge", {
      project_id: projectId(),
      query: { $expr: { $eq: [{ $getField: "id" }, { $literal: entry.id }] } },
    });
    entries.value = entries.value.filter((other) => other.id !== entry.id);
  };
  const reaction = (sign, iconName, name) => {
    const mine = computed(() => entries.value.find((entry) => entry.payload?.emoji === sign));
    const change = () => attempt(() => (mine.peek() ? remove(mine.peek()) : add("wandb.reaction.1", { emoji: sign })));
    return button(null, change, { kind: "quiet", iconName, label: name, needs: "annotate", "aria-pressed": () => String(Boolean(mine.value)) });
  };
  const note = () =>
    form("Add a note", [{ name: "note", label: "Note", type: "textarea", required: true }], {
      action: "Add note",
      submit: ({ note: text }) => add("wandb.note.1", { note: text }),
    });
  const notes = () => entries.value.filter((entry) => entry.payload?.note);
  const listed = () =>
    h(
      "details.notes",
      h("summary", plural(notes().length, "note")),
      h(
        "ul",
        notes().map((entry) => h("li", { dir: "auto" }, icon("edit"), entry.payload.note)),
      ),
    );
  return h(
    "span.feedbackbar",
    reaction("👍", "good", "Good"),
    reaction("👎", "bad", "Bad"),
    button(null, note, { kind: "quiet", iconName: "edit", label: "Add a note", needs: "annotate" }),
    () => notes().length > 0 && listed(),
  );
}
