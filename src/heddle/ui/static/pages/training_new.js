// Starting a job: on calls that were traced, with one of their values or a scorer's feedback as the reward.
import { h, signal } from "../lib/dom.js";
import { get, post, send } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { codeBlock, field } from "../lib/panels.js";
import { button, segments } from "../lib/parts.js";
import { projectId } from "../lib/router.js";

const NEW = "";

/**
 * Ask what to train on what; resolves to the id of the new job, or null. `preset` may hold `run`, an evaluation run whose
 * answers are trained on, and the `paths` of its scores.
 * @param {any[]} models
 * @param {string[]} code
 * @param {{run?: string, paths?: string[]}} preset
 */
export function newJob(models, code, preset = {}) {
  return dialog(
    "New training job",
    (close) => {
      const way = signal("calls");
      return [
        preset.run
          ? null
          : segments(
              "What to train on",
              [
                ["calls", "From calls"],
                ["program", "From a program"],
              ],
              () => way.value,
              (value) => {
                way.value = value;
              },
            ),
        () =>
          way.value === "calls"
            ? callsForm(models, close, preset)
            : [
                h("p", "A program samples, judges and sends trajectories; every job that it starts appears here."),
                code.map(codeBlock),
              ],
      ];
    },
    { wide: true },
  );
}

function callsForm(models, close, preset) {
  const problem = h("p.problem", { role: "alert" });
  const model = h(
    "select",
    { name: "model" },
    models.map(({ id, name, base_model: base }) => h("option", { value: id }, `${name} (${base})`)),
    h("option", { value: NEW }, "A new model"),
  );
  const chosen = signal(model.value);
  model.addEventListener("change", () => {
    chosen.value = model.value;
  });
  const name = h("input", {
    name: "name",
    placeholder: "answers-1",
    autocomplete: "off",
    pattern: "[A-Za-z0-9_][A-Za-z0-9_. \\-]{0,127}",
  });
  const base = h("select", { name: "base" });
  get("/v1/preview/base-models").then(
    ({ data }) => base.replaceChildren(...data.map(({ id }) => h("option", { value: id }, id))),
    (error) => {
      problem.textContent = error.message;
    },
  );
  const ops = h("datalist", { id: "job-ops" });
  const paths = h("datalist", { id: "job-paths" }, (preset.paths ?? []).map((value) => h("option", { value })));
  const op = h("input", { name: "op", placeholder: "answer", autocomplete: "off", list: ops.id });
  const path = h("input", { name: "path", placeholder: "output.reward", required: true, autocomplete: "off", list: paths.id });
  if (preset.run) path.value = preset.paths?.[0] ?? "";
  else
    get(`/_ui/api/ops?${new URLSearchParams({ project: projectId() })}`).then(
      (found) => ops.append(...found.ops.map((entry) => h("option", { value: entry.name }))),
      () => {},
    );
  const feedback = h("input", { name: "feedback", placeholder: "wandb.runnable.judge", autocomplete: "off" });
  const limit = h("input", { name: "limit", type: "number", min: 2, max: 10_000, value: 500 });
  const rate = h("input", { name: "rate", type: "number", step: "any", min: 0, placeholder: "0.000005" });
  const submit = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      const id = model.value || (await makeModel(name.value.trim(), base.value));
      const { id: job } = await post(
        "/v1/preview/training-jobs",
        jobBody({
          id,
          run: preset.run,
          op: op.value.trim(),
          path: path.value.trim(),
          feedback: feedback.value.trim(),
          limit: Number(limit.value),
          rate: rate.value,
        }),
      );
      close(job);
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return h(
    "form",
    { onsubmit: submit },
    h(
      "p.dim",
      preset.run
        ? "The run's answers to a row form a group. To compare, rows need several trials or equal inputs."
        : "Calls with equal inputs form a group; their chats are its trajectories. " +
            "Each needs a reward, and chats that this server's models answered with token probabilities.",
    ),
    ops,
    paths,
    h(
      "div.formgrid",
      field("Model", model, "It is trained one more step."),
      () => (chosen.value === NEW ? field("Name of the new model", name) : null),
      () => (chosen.value === NEW ? field("Base model", base) : null),
      preset.run ? null : field("Calls of the op", op, "Op name; leave empty for all root calls."),
      field("Reward path", path, "In the call, such as output.reward, or in the payload of the feedback type."),
      preset.run ? null : field("Feedback type", feedback, "Leave empty if the reward is in the call itself."),
      field("Maximum number of calls", limit),
      field("Learning rate", rate, "Default 5e-6; for heddle-tiny use 1e-3 to 5e-3."),
    ),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, "Start training"),
    ),
  );
}

async function makeModel(name, base) {
  const [entity, project] = projectId().split("/");
  if (!name) throw new Error("The new model needs a name");
  const made = await send("POST", "/v1/preview/models", { entity, project, name, base_model: base, return_existing: true });
  return made.id;
}

function jobBody({ id, run, op, path, feedback, limit, rate }) {
  const source = { project_id: projectId(), reward: feedback ? { feedback_type: feedback, path } : { path }, limit };
  // Programs name an op by its ref, this server its own by the bare name.
  const named = (name) => [name, `weave:///${projectId()}/op/${name}:*`];
  if (run) Object.assign(source, { filter: { parent_ids: [run], op_names: named("Evaluation.predict_and_score") } });
  else if (op) Object.assign(source, { filter: { op_names: named(op), trace_roots_only: false } });
  return { model_id: id, source, experimental_config: rate ? { learning_rate: Number(rate) } : {} };
}
