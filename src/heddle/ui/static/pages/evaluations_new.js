// Evaluating a model on the server, and making an evaluation of a dataset and built-in scorers.
import { h, signal } from "../lib/dom.js";
import { post, postProject } from "../lib/data.js";
import { dialog, toast } from "../lib/dialog.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { modelField } from "../lib/modelfield.js";
import { go, link, projectId } from "../lib/router.js";
import { refOf, runLink } from "../lib/runs.js";
import { BUILT_IN, kindOfScorer, objectName, publishBuiltIn, runsHere } from "../lib/scorerkinds.js";
import { keyText, serverAddress } from "../lib/setup.js";

/** What the page says before there is any run. */
export const TEACHING = () => ({
  title: "See which version answers better",
  text: "An evaluation runs a model on every row of a dataset and scores the answers. Run one from a program with the lines below, or create one here from a dataset and built-in scorers.",
  code: [
    "pip install weave",
    `export WANDB_BASE_URL=${serverAddress()} WANDB_API_KEY=${keyText()}`,
    "python - <<'END'",
    "import asyncio, weave",
    `weave.init("${projectId()}")`,
    "",
    "@weave.op",
    "def right(target: str, output: str) -> dict:",
    '    return {"correct": target == output}',
    "",
    "@weave.op",
    "def shout(word: str) -> str:",
    "    return word.upper()",
    "",
    'rows = [{"word": "warp", "target": "WARP"}, {"word": "weft", "target": "Weft"}]',
    'asyncio.run(weave.Evaluation(name="first", dataset=rows, scorers=[right]).evaluate(shout))',
    "END",
  ].join("\n"),
  action: h("p", "No dataset yet? ", h("a", { href: link("/datasets") }, "Create one"), " from a file or from calls."),
});

/** Ask for an evaluation and a model, start the run, and open it. */
export async function newRun(about, onstart, preset = {}) {
  const latest = (about?.list ?? []).filter((object) => object.is_latest).reverse();
  if (!latest.length) {
    toast("No evaluations yet: create one first");
    return newEvaluation(about, onstart);
  }
  const made = await dialog("Evaluate a model", (close) => {
    const problem = h("p.problem", { role: "alert" });
    const which = h(
      "select",
      { required: true },
      latest.map((object) =>
        h(
          "option",
          { value: object.ref, selected: object.ref === preset.evaluation || object.object_id === preset.name },
          `${object.object_id} v${object.version_index}`,
        ),
      ),
    );
    const model = modelField({ required: true, value: preset.model ?? "" });
    const submit = async (event) => {
      event.preventDefault();
      try {
        close(
          await postProject("/evaluations/evaluate_model", { evaluation_ref: which.value, model_ref: model.input.value.trim() }),
        );
      } catch (error) {
        problem.textContent = error.message;
      }
    };
    return h(
      "form",
      { onsubmit: submit },
      h(
        "p.dim",
        "The server runs the model on every row and scores the answers with the evaluation's built-in scorers and judges. Scorers written in code run only in programs.",
      ),
      field("Evaluation", which),
      field("Model", [model.input, model.list], "A model served here, provider/model, an adapter step or the ref of a stored model."),
      problem,
      h(
        "div.actions",
        button("Cancel", () => close()),
        h("button.button.primary", { type: "submit" }, "Start"),
      ),
    );
  });
  if (!made) return;
  onstart?.();
  go(runLink(made.call_id));
}

/** Ask for a dataset and scorers, and store an evaluation of them. */
export async function newEvaluation(about, onmade, preset = {}) {
  const newest = [{ field: "created_at", direction: "desc" }];
  const [datasets, scorers] = await Promise.all([
    postProject("/objs/query", {
      filter: { base_object_classes: ["Dataset"], latest_only: true },
      metadata_only: true,
      sort_by: newest,
    }),
    postProject("/objs/query", { filter: { base_object_classes: ["Scorer"], latest_only: true } }),
  ]);
  if (!datasets.objs.length) {
    toast("No datasets yet: create one first");
    go(link("/datasets"));
    return;
  }
  const content = (close) => evaluationForm(datasets.objs, scorers.objs.filter(runsHere), close, preset);
  const made = await dialog("New evaluation", content, { wide: true });
  if (!made) return;
  onmade?.();
  toast(`Evaluation ${made.object_id} created`);
  const { loadEvaluations } = await import("../lib/runs.js");
  newRun(await loadEvaluations(), onmade, { ...preset, name: made.object_id });
}

function evaluationForm(datasets, stored, close, preset) {
  const problem = h("p.problem", { role: "alert" });
  const chosen = signal(new Set());
  const toggle = (key) => () => {
    const next = new Set(chosen.value);
    if (!next.delete(key)) next.add(key);
    chosen.value = next;
  };
  const check = (key, name, says) =>
    h("label", h("input", { type: "checkbox", onchange: toggle(key) }), h("span", name, " ", h("small", says)));
  const name = h("input", { type: "text", required: true, autocomplete: "off", placeholder: "support-quality" });
  name.value = preset.name ?? "";
  const dataset = h(
    "select",
    { required: true },
    datasets.map((object) =>
      h(
        "option",
        { value: refOf(object), selected: object.object_id === preset.dataset },
        `${object.object_id} v${object.version_index}`,
      ),
    ),
  );
  const trials = h("input", { type: "number", min: 1, max: 100, value: 1 });
  const fresh = Object.entries(BUILT_IN).filter(([className]) => !stored.some((object) => object.object_id === className));
  const submit = async (event) => {
    event.preventDefault();
    try {
      if (!chosen.peek().size) throw new Error("Choose at least one scorer");
      const refs = await Promise.all([...chosen.peek()].map((key) => (BUILT_IN[key] ? publishBuiltIn(key, key) : key)));
      close(
        await post(`/v2/${projectId()}/evaluations`, {
          name: objectName(name.value),
          dataset: dataset.value,
          scorers: refs,
          trials: Number(trials.value) || 1,
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
    field("Dataset", dataset,
      "The model gets a row's messages (or prompt, input, question); scorers compare its answer with the column target."),
    h(
      "fieldset",
      h("legend", h("b", "Scorers")),
      h(
        "div.checks",
        { tabindex: 0, role: "group", "aria-label": "Scorers" },
        stored.length
          ? [
              h("h3", "Stored in this project"),
              stored.map((object) => check(refOf(object), object.object_id, `${kindOfScorer(object)} v${object.version_index}`)),
            ]
          : null,
        fresh.length ? [h("h3", "Built in"), fresh.map(([className, { says }]) => check(className, className, says))] : null,
      ),
    ),
    field("Trials", trials, "Number of answers per row."),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, "Create evaluation"),
    ),
  );
}
