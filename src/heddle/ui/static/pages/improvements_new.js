// Starting an improvement: which calls are weak, what the reward is, what must not get worse, and what it may cost.
import { h } from "../lib/dom.js";
import { get, postProject } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { projectId } from "../lib/router.js";
import { refOf } from "../lib/runs.js";
import { kindOfScorer, runsHere } from "../lib/scorerkinds.js";

const listed = (baseClass, metadataOnly) =>
  postProject("/objs/query", {
    filter: { base_object_classes: [baseClass], latest_only: true },
    metadata_only: metadataOnly,
  }).then(({ objs }) => objs);

/** Ask for everything and start it; resolves to {id}, or null. */
export async function newImprovement() {
  const [training, scorers, monitors, evaluations] = await Promise.all([
    get(`/_ui/api/training?${new URLSearchParams({ project: projectId() })}`),
    listed("Scorer", false),
    listed("Monitor", true),
    listed("Evaluation", true),
  ]);
  const known = { models: training.models, scorers: scorers.filter(runsHere), monitors, evaluations };
  return dialog("New improvement", (close) => improvementForm(known, close), { wide: true });
}

function improvementForm({ models, scorers, monitors, evaluations }, close) {
  const problem = h("p.problem", { role: "alert" });
  const choose = (first, entries, attributes = {}) =>
    h("select", attributes, first && h("option", { value: "" }, first), entries.map(([value, text]) => h("option", { value }, text)));
  const amount = (value, attributes) => h("input", { type: "number", step: "any", value, ...attributes });
  const names = (objects) => objects.map(({ object_id: name }) => [name, name]);
  const model = choose("", models.map(({ name }) => [name, name]), { required: true });
  const monitor = choose("none", names(monitors));
  const below = amount(0.5);
  const error = h("input", { type: "text", autocomplete: "off", placeholder: "any, or none" });
  const op = h("input", { type: "text", autocomplete: "off", placeholder: "every op" });
  const target = h("input", { type: "text", autocomplete: "off", placeholder: "attributes.target" });
  const general = choose("none", evaluations.map((object) => [refOf(object), object.object_id]));
  const budget = amount(600, { min: 1, required: true });
  const rate = amount(null, { min: 0, placeholder: "the default" });
  const watch = choose("none", names(monitors));
  const floor = amount(0.5);
  const boxes = scorers.map((object) => h("input", { type: "checkbox", value: refOf(object) }));
  const submit = async (event) => {
    event.preventDefault();
    const weak = {
      ...(monitor.value && { monitor: monitor.value, below: Number(below.value) }),
      ...(error.value.trim() && { error_group: error.value.trim() }),
      ...(op.value.trim() && { filter: { op_names: [op.value.trim()] } }),
    };
    try {
      close(
        await postProject("/improvements/create", {
          model: model.value,
          weak,
          scorers: boxes.filter((box) => box.checked).map((box) => box.value),
          budget_seconds: Number(budget.value),
          ...(target.value.trim() && { columns: { target: target.value.trim() } }),
          ...(general.value && { general: general.value }),
          ...(rate.value && { experimental_config: { learning_rate: Number(rate.value) } }),
          ...(watch.value && { watch: { monitor: watch.value, below: Number(floor.value) } }),
        }),
      );
    } catch (failed) {
      problem.textContent = failed.message;
    }
  };
  if (!models.length || !scorers.length) {
    const missing = models.length ? "a scorer that runs on the server (Scorers page)" : "a trainable model (Training jobs page)";
    return h("div", h("p", `An improvement needs ${missing}. Create one first.`), h("div.actions", button("Close", () => close())));
  }
  return h(
    "form",
    { onsubmit: submit },
    field("Model", model),
    h("div.twofields", field("Weak calls by monitor", monitor), field("Scores below", below)),
    h("div.twofields", field("Weak calls by error", error, "The id of a group on the Errors page."), field("Calls of the op", op)),
    h(
      "fieldset",
      h("legend", h("b", "Reward")),
      h(
        "div.checks",
        { tabindex: 0, role: "group", "aria-label": "Scorers" },
        scorers.map((object, index) =>
          h("label", boxes[index], h("span", object.object_id, " ", h("small", kindOfScorer(object)))),
        ),
      ),
    ),
    h(
      "div.twofields",
      field("Target", target, "Path of the expected answer in a call."),
      field("Must not get worse", general, "An evaluation of what the model does well."),
    ),
    h("div.twofields", field("CPU seconds", budget), field("Learning rate", rate)),
    h("div.twofields", field("Watch afterwards", watch), field("Roll back below", floor, "Mean of the monitor's latest 20 scores.")),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, "Start"),
    ),
  );
}
