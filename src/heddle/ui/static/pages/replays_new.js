// Starting a replay: which chats, what is changed, and who scores both answers.
import { h } from "../lib/dom.js";
import { postProject } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { modelField } from "../lib/modelfield.js";
import { refOf } from "../lib/runs.js";
import { kindOfScorer, runsHere } from "../lib/scorerkinds.js";
import { opNames } from "./scorers_new.js";

/** Ask for everything and start it; resolves to {id}, or null. */
export async function newReplay(preset = {}) {
  const [prompts, scorers] = await Promise.all([
    postProject("/objs/query", { filter: { base_object_classes: ["Prompt"], latest_only: true }, metadata_only: true }).catch(
      () => ({ objs: [] }),
    ),
    postProject("/objs/query", { filter: { base_object_classes: ["Scorer"], latest_only: true } }).catch(() => ({ objs: [] })),
  ]);
  return dialog(
    "New replay",
    (close) => replayForm({ prompts: prompts.objs, scorers: scorers.objs.filter(runsHere), preset, close }),
    { wide: true },
  );
}

function replayForm({ prompts, scorers, preset, close }) {
  const problem = h("p.problem", { role: "alert" });
  const text = (attributes) => h("input", { type: "text", autocomplete: "off", ...attributes });
  const name = text({ placeholder: "what this replay tries" });
  const op = text({ placeholder: "every op", value: preset.op ?? "" });
  const source = text({ placeholder: "any model" });
  const limit = h("input", { type: "number", min: 1, max: 10_000, value: 100, required: true });
  const model = modelField({ placeholder: "as recorded", "aria-label": "Answer with the model" });
  const prompt = h(
    "select",
    h("option", { value: "" }, "as recorded"),
    prompts.map((object) => h("option", { value: refOf(object) }, `${object.object_id} v${object.version_index}`)),
  );
  const temperature = h("input", { type: "number", min: 0, step: "any", placeholder: "as recorded" });
  const tokens = h("input", { type: "number", min: 1, placeholder: "as recorded" });
  const boxes = scorers.map((object) => h("input", { type: "checkbox", value: refOf(object) }));
  const submit = async (event) => {
    event.preventDefault();
    const params = {
      ...(temperature.value && { temperature: Number(temperature.value) }),
      ...(tokens.value && { max_tokens: Number(tokens.value) }),
    };
    try {
      close(
        await postProject("/replays/create", {
          name: name.value.trim() || null,
          filter: { ...(op.value.trim() && { op_names: opNames(op.value.trim()) }) },
          limit: Number(limit.value),
          query: source.value.trim()
            ? { $expr: { $eq: [{ $getField: "inputs.model" }, { $literal: source.value.trim() }] } }
            : null,
          model: model.input.value.trim() || null,
          prompt: prompt.value || null,
          params,
          scorer_refs: boxes.filter((box) => box.checked).map((box) => box.value),
        }),
      );
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return h(
    "form",
    { onsubmit: submit },
    field("Name", name),
    h("div.twofields", field("Chats of the op", op, "Calls without a chat are skipped."), field("Originally answered by", source)),
    field("Newest chats", limit, "At most 10,000."),
    h(
      "div.twofields",
      field("Answer with the model", [model.input, model.list]),
      field("Prompt", prompt, "Replaces the recorded system messages."),
    ),
    h("div.twofields", field("Temperature", temperature), field("Max tokens", tokens)),
    scorers.length > 0 &&
      h(
        "fieldset",
        h("legend", h("b", "Score both answers by")),
        h(
          "div.checks",
          { tabindex: 0, role: "group", "aria-label": "Scorers" },
          scorers.map((object, index) =>
            h("label", boxes[index], h("span", object.object_id, " ", h("small", kindOfScorer(object)))),
          ),
        ),
      ),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, "Start"),
    ),
  );
}
