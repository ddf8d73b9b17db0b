// Making scorers, and scoring calls that are stored already.
import { h, signal } from "../lib/dom.js";
import { lines, postProject } from "../lib/data.js";
import { dialog, toast } from "../lib/dialog.js";
import { field } from "../lib/panels.js";
import { button, skeleton } from "../lib/parts.js";
import { modelField } from "../lib/modelfield.js";
import { link, path, projectId } from "../lib/router.js";
import { refOf } from "../lib/runs.js";
import { callName } from "../lib/spans.js";
import { oneLine, plural } from "../lib/format.js";
import { BUILT_IN, builtInOf, judgeOf, kindOfScorer, objectName, publishBuiltIn, publishJudge } from "../lib/scorerkinds.js";

const PROMPT =
  "You are judging the answer of an assistant.\n\nInputs: {inputs}\nAnswer: {output}\n\n" +
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
  const given = () => Object.fromEntries(
    controls.map((entry) => [entry.key, read(entry)]).filter(([, value]) => value !== undefined));
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
      field("Name", name, "Scores are stored under this name."),
      settings,
      h("p.dim", () =>
        BUILT_IN[chosen.value].needsTarget
          ? "The expected answer is read from the row's column target."
          : "No expected answer is needed.",
      ),
      tryOut(() => builtInOf(objectName(name.value), chosen.peek(), given())),
    ],
    "Create",
    () =>
      publishBuiltIn(
        objectName(name.value),
        chosen.peek(),
        given(),
      ),
    { wide: true },
  );
  if (made) {
    toast("Scorer created");
    onmade();
  }
}

function read({ type, control }) {
  if (type === "checkbox") return control.checked;
  if (control.value === "") return undefined;
  return type === "number" ? Number(control.value) : type === "textarea" ? JSON.parse(control.value) : control.value;
}

/** A part of a form that asks the scorer of `value()` about some calls, before anything is stored. */
function tryOut(value) {
  const which = h("input", { type: "text", autocomplete: "off", placeholder: "the newest 5 root calls",
    "aria-label": "Calls to try it on" });
  const shown = signal(/** @type {any} */ (null));
  const run = async () => {
    shown.value = skeleton(3);
    try {
      const calls = await chosenCalls(which.value.trim());
      if (!calls.length) throw new Error("No such call");
      const { results } = await postProject("/calls/score/preview", { call_ids: calls.map(({ id }) => id), scorer: value() });
      shown.value = h("table.table.inputs", { "aria-label": "Result" },
        h("thead", h("tr", ["Call", "Output", "Score"].map((text) => h("th", { scope: "col" }, text)))),
        h("tbody", results.map(({ call_id: id, score, problem }, index) => h("tr",
          h("td", h("a", { href: link(path`/calls/${id}`), target: "_blank" }, callName(calls[index]))),
          h("td.dim", { dir: "auto" }, oneLine(calls[index].exception ?? calls[index].output, 80)),
          h("td", { class: problem ? "worse" : "mono", dir: "auto", style: { "white-space": "normal" } },
            problem ?? oneLine(score, 300))))));
    } catch (error) {
      shown.value = h("p.problem", { role: "alert" }, error.message);
    }
  };
  return h("fieldset.tryout", h("legend", h("b", "Try it before saving")),
    field("Calls", which, "Comma-separated ids, or an op name for its newest 5 calls."),
    button("Try", run, { iconName: "play", needs: "write" }), h("div", { role: "status" }, () => shown.value));
}

/** The calls that a text means: by their ids, else the newest of an op, else the newest roots. */
async function chosenCalls(text) {
  const columns = ["id", "op_name", "display_name", "output", "exception"];
  const ids = text.split(/[\s,]+/).filter((part) => /^[0-9a-f-]{16,}$/i.test(part)).slice(0, 20);
  if (ids.length) {
    const found = await lines("/calls/stream_query", { filter: { call_ids: ids }, columns });
    return ids.map((id) => found.find((call) => call.id === id)).filter(Boolean);
  }
  const filter = text ? { op_names: opNames(text) } : { trace_roots_only: true };
  return lines("/calls/stream_query", { filter, columns, limit: 5, sort_by: [{ field: "started_at", direction: "desc" }] });
}

/** Make a judge: a model that is asked for JSON about an answer. */
export async function newJudge(onmade) {
  const name = h("input", { type: "text", required: true, placeholder: "helpful", autocomplete: "off" });
  const model = modelField({ required: true });
  const prompt = h("textarea", { rows: 9, required: true, value: PROMPT });
  const told = () => ({ name: objectName(name.value) || "judge", model: model.input.value.trim(), prompt: prompt.value });
  const made = await workForm(
    "New judge",
    () => [
      field("Name", name),
      field("Model", [model.input, model.list]),
      field(
        "Prompt",
        prompt,
        "{output} is the answer, {inputs} all inputs, {column} a column of the row. Write {{ and }} for literal braces.",
      ),
      tryOut(() => judgeOf(told())),
    ],
    "Create",
    () => publishJudge(told()),
    { wide: true },
  );
  if (made) {
    toast("Judge created");
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
      field("Op", op, "Op name; leave empty for all root calls."),
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
      if (!calls.length) throw new Error("No such call");
      await postProject("/calls/score", { call_ids: calls.map(({ id }) => id), scorer_refs: refs });
      return { count: calls.length };
    },
  );
  if (made) toast(`Scoring ${plural(made.count, "call")} in the background; scores appear as their feedback`);
}

/** The names under which calls of an op are stored. */
export function opNames(name) {
  return name.startsWith("weave:///") ? [name] : [name, `weave:///${projectId()}/op/${name}:*`];
}
