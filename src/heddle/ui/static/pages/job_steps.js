// The steps of a run: each stays addressable, can be asked, evaluated, compared and made the one that the name means.
import { h, signal } from "../lib/dom.js";
import { get, send } from "../lib/data.js";
import { attempt, confirm, loadedDialog } from "../lib/dialog.js";
import { ago, bytes, int, number } from "../lib/format.js";
import { copyButton, facts } from "../lib/panels.js";
import { button, icon, timeNode } from "../lib/parts.js";
import { link, path } from "../lib/router.js";
import { table } from "../lib/table.js";
import { recipe } from "./job_details.js";

const SHOWN = 100;

/** The address that inference knows a step by. */
export const addressOf = (run, step) => `wandb-artifact:///${run.project}/${run.name}:step${step}`;

/** The table of steps, the newest first. */
export function stepsTab(run) {
  const all = signal(false);
  const selection = signal(/** @type {Set<any>} */ (new Set()));
  const rows = () => [...run.value.checkpoints].reverse().slice(0, all.value ? undefined : SHOWN);
  return h(
    "div.tabletab",
    () =>
      selection.value.size > 1
        ? h(
            "div.bar-of-tools.flush",
            h(
              "a.button",
              {
                href: link("/playground", {
                  model: [...selection.value]
                    .slice(0, 4)
                    .map((step) => addressOf(run.value, step))
                    .join(","),
                }),
              },
              icon("play"),
              `Compare ${Math.min(4, selection.value.size)} in the playground`,
            ),
          )
        : null,
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Steps" },
      table({ label: "Steps", columns: () => columns(run), rows, key: (row) => row.step, selection, keyboard: false }),
    ),
    () =>
      run.value.checkpoints.length > SHOWN && !all.value
        ? button(`Show all ${int(run.value.checkpoints.length)}`, () => {
            all.value = true;
          })
        : null,
  );
}

function columns(run) {
  const figure = (key, label, name) => ({ key, label, number: true, render: (row) => row.metrics[name] == null ? absent(row, name) : number(row.metrics[name]) });
  return [
    {
      key: "step",
      label: "Step",
      render: (row) =>
        h("span.stepname", h("b", int(row.step)), run.value.latest_step === row.step ? h("span.badge.good", "latest") : null),
    },
    figure("reward", "Reward", "reward"),
    figure("validation", "Validation", "val/reward"),
    figure("loss", "Loss", "loss/train"),
    figure("kl", "KL", "loss/kl_policy_ref"),
    { key: "size", label: "Size", number: true, render: (row) => bytes(row.bytes) },
    {
      key: "made",
      label: "Made",
      number: true,
      render: (row) => timeNode(row.created_at, ago),
    },
    { key: "actions", label: "Actions", render: (row) => actions(run, row) },
  ];
}

/** Why a step lacks a figure: it was skipped where no group of its trajectories had anything to teach. */
function absent(row, name) {
  const isSkipped = row.metrics.num_groups_trainable === 0 && name.startsWith("loss/");
  return isSkipped
    ? h("span.dim", { title: "All rewards of each group were equal, so there was nothing to learn" }, "skipped")
    : h("span.faint", { title: "Not measured at this step" }, "–");
}

function actions(run, row) {
  const address = addressOf(run.value, row.step);
  const quiet = (href, name, text) =>
    h("a.button.quiet", { href, "aria-label": `${text}, step ${row.step}`, title: text }, icon(name));
  return h(
    "span.rowactions",
    quiet(link("/playground", { model: address }), "play", "Try it in the playground"),
    row.job_id && run.value.jobs[0]?.kind !== "tinker"
      ? quiet(link("/trajectories", { model: run.value.id, step: row.step }), "trajectory", "Training trajectories")
      : null,
    button(null, () => attempt(() => evaluate(address)),
      { kind: "quiet", iconName: "evaluate", label: `Evaluate step ${row.step}`, needs: "write" }),
    button(null, () => showRecipe(run.value, row), { kind: "quiet", iconName: "info", label: `How step ${row.step} was made` }),
    copyButton(() => address, `Copy the address of step ${row.step}`),
    run.value.latest_step === row.step
      ? null
      : button(null, () => makeLatest(run, row.step), {
          kind: "quiet",
          iconName: "undo",
          label: `Make step ${row.step} current`,
          needs: "write",
        }),
  );
}

/** The card of a step: what it was made from, with what, and its files. */
function showRecipe(run, row) {
  const before = run.checkpoints[run.checkpoints.findIndex(({ step }) => step === row.step) - 1]?.id;
  const page = new URLSearchParams({ limit: "1", ...(before ? { after: before } : {}) });
  const load = async () => (await get(`${path`/v1/preview/models/${run.id}`}/checkpoints?${page}`)).data[0];
  return loadedDialog(`Step ${row.step}`, load, ({ recipe: made, digest, bytes: size }) => facts([
    ["Base model", h("span.mono", made.base_model)],
    ["LoRA", `rank ${made.lora.rank}, alpha ${number(made.lora.alpha)}, on ${(made.lora.target_modules ?? []).join(", ")}`],
    ["Trained as", made.kind],
    ...recipe(made.settings),
    ["Size", bytes(size)],
    ["SHA-256", h("code", digest)],
  ]));
}

async function evaluate(model) {
  const [{ newRun }, { loadEvaluations }] = await Promise.all([import("./evaluations_new.js"), import("../lib/runs.js")]);
  await newRun(await loadEvaluations(), null, { model });
}

async function makeLatest(run, step) {
  const { id, name } = run.peek();
  if (
    !(await confirm(
      `Use step ${step} for ${name}?`,
      "Requests for the bare name use this step at once, and the next job continues from it. Nothing is deleted.",
      { action: `Use step ${step}`, danger: false },
    ))
  )
    return;
  const changed = await attempt(
    () => send("POST", path`/v1/preview/models/${id}` + "/rollback", { step }),
    `${name} now uses step ${step}`,
  );
  if (changed) run.value = { ...run.peek(), latest_step: step };
}
