// Making scorers, and scoring calls that are stored already.
import { h, signal } from "../lib/dom.js";
import { lines, postProject } from "../lib/data.js";
import { dialog, toast } from "../lib/dialog.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { modelField } from "../lib/modelfield.js";
import { projectId } from "../lib/router.js";
import { refOf } from "../lib/runs.js";
import { BUILT_IN, kindOfScorer, objectName, publishBuiltIn, publishJudge } from "../lib/scorerkinds.js";

const PROMPT =
  "You judge an answer of an assistant.\n\nWhat was given: {inputs}\nThe answer: {output}\n\n" +
  'Answer only with JSON: {{"correct": true or false, "reason": "one sentence"}}';
const MOST_CALLS = 1000;

/** A form in a dialog whose work may fail; the dialog stays open then and says why. */
function workForm(heading, make, action, work, options = {}) {
  return dialog(
    heading,
    (close) => {
      const problem = h("p.problem", { role: "alert" });
      const submit = async (event) => {
        event.preventDefault();
        try {
          close((await work()) ?? true);
        } catch (error) {
          problem.textContent = error.message;
        }
      };
      return h(
        "form",
        { onsubmit: submit },
        make(),
        problem,
        h(
          "div.actions",
          button("Cancel", () => close()),
          h("button.button.primary", { type: "submit" }, action),
        ),
      );
    },
    options,
  );
}

/** Make a built-in scorer with its settings. */
export async function newBuiltIn(onmade) {
  const chosen = signal("ExactMatchScorer");
  const name = h("input", { type: "text", required: true, value: "ExactMatchScorer", autocomplete: "off" });
  let controls = [];
  const settings = () => {
    controls = BUILT_IN[chosen.value].settings.map(([key, label, type, value]) => {
      const control =
        type === "textarea"
          ? h("textarea", { rows: 5 })
          : h("input", type === "checkbox" ? { type, checked: Boolean(value) } : { type, step: "any", value: value ?? "" });
      return { key, type, control, element: field(label, control) };
    });
    return controls.map(({ element }) => element);
  };
  const choose = (event) => {
    if (name.value === chosen.peek()) name.value = event.target.value;
    chosen.value = event.target.value;
  };
  const made = await workForm(
    "New built-in scorer",
    () => [
      field(
        "Kind",
        h(
          "select",
          { onchange: choose },
          Object.entries(BUILT_IN).map(([className, { says }]) => h("option", { value: className }, `${className}: ${says}`)),
        ),
      ),
      field("Name", name, "Scores are kept under it."),
      settings,
      h("p.dim", () =>
        BUILT_IN[chosen.value].needsTarget
          ? "The right answer is read from the column target of the row."
          : "It needs no right answer.",
      ),
    ],
    "Create",
    () =>
      publishBuiltIn(
        objectName(name.value),
        chosen.peek(),
        Object.fromEntries(controls.map((entry) => [entry.key, read(entry)]).filter(([, value]) => value !== undefined)),
      ),
  );
  if (made) {
    toast("Scorer stored");
    onmade();
  }
}

function read({ type, control }) {
  if (type === "checkbox") return control.checked;
  if (control.value === "") return undefined;
  return type === "number" ? Number(control.value) : type === "textarea" ? JSON.parse(control.value) : control.value;
}

/** Make a judge: a model that is asked for JSON about an answer. */
export async function newJudge(onmade) {
  const name = h("input", { type: "text", required: true, placeholder: "helpful", autocomplete: "off" });
  const model = modelField({ required: true });
  const prompt = h("textarea", { rows: 9, required: true, value: PROMPT });
  const made = await workForm(
    "New judge",
    () => [
      field("Name", name),
      field("Model", [model.input, model.list]),
      field(
        "Prompt",
        prompt,
        "{output} is the answer, {inputs} all that was given, {column} one column of the row. Write {{ and }} for braces of JSON.",
      ),
    ],
    "Create",
    () => publishJudge({ name: objectName(name.value), model: model.input.value.trim(), prompt: prompt.value }),
    { wide: true },
  );
  if (made) {
    toast("Judge stored");
    onmade();
  }
}

/** Score the newest calls of an op by scorers that the server runs; `chosen` are names. */
export async function scoreCalls(usable, chosen = new Set()) {
  const boxes = usable.map((object) =>
    h("input", { type: "checkbox", value: refOf(object), checked: chosen.has(object.object_id) || usable.length === 1 }),
  );
  const op = h("input", { type: "text", autocomplete: "off", placeholder: "every op" });
  const count = h("input", { type: "number", min: 1, max: MOST_CALLS, value: 50, required: true });
  const made = await workForm(
    "Score calls",
    () => [
      h(
        "fieldset",
        h("legend", h("b", "Scorers")),
        h(
          "div.checks",
          { tabindex: 0, role: "group", "aria-label": "Scorers" },
          usable.map((object, index) =>
            h("label", boxes[index], h("span", object.object_id, " ", h("small", kindOfScorer(object)))),
          ),
        ),
      ),
      field("Op", op, "The name of an op; empty for the roots of all traces."),
      field("Newest calls", count, `At most ${MOST_CALLS}.`),
    ],
    "Score",
    async () => {
      const refs = boxes.filter((box) => box.checked).map((box) => box.value);
      if (!refs.length) throw new Error("Choose at least one scorer");
      const filter = op.value.trim() ? { op_names: opNames(op.value.trim()) } : { trace_roots_only: true };
      const calls = await lines("/calls/stream_query", {
        filter,
        columns: ["id"],
        limit: Number(count.value),
        sort_by: [{ field: "started_at", direction: "desc" }],
      });
      if (!calls.length) throw new Error("There is no such call");
      await postProject("/calls/score", { call_ids: calls.map(({ id }) => id), scorer_refs: refs });
      return { count: calls.length };
    },
  );
  if (made) toast(`${made.count} calls are scored in the background; the scores are feedback on them`);
}

/** The names under which calls of an op are stored. */
export function opNames(name) {
  return name.startsWith("weave:///") ? [name] : [name, `weave:///${projectId()}/op/${name}:*`];
}
