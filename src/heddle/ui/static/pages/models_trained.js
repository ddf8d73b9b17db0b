// Models that are trained on this server: their steps, which of them the bare name means, and what to do with each.
import { h } from "../lib/dom.js";
import { resource, send } from "../lib/data.js";
import { attempt, confirm } from "../lib/dialog.js";
import { ago, bytes, int, number } from "../lib/format.js";
import { copyButton, empty } from "../lib/panels.js";
import { button, cutNote, loaded, timeNode } from "../lib/parts.js";
import { link, projectId, query, setQuery } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";
import { addressOf, checkpointsOf } from "./models_data.js";

/** The models of the project, and the checkpoints of the one in the query `model`. */
export function trainedView({ models, check }, reload) {
  if (!models.length) return nothing(check);
  const chosen = () => models.find(({ id }) => id === query("model")) ?? (models.length === 1 ? models[0] : null);
  const columns = [
    {
      key: "name",
      label: "Model",
      width: "30%",
      render: (model) => h("b.modelname", { title: addressOf(model), dir: "auto" }, model.name),
    },
    { key: "base", label: "Base model", render: (model) => h("span.mono", model.base_model) },
    { key: "step", label: "Current step", number: true, render: (model) => int(model.latest_step) },
    {
      key: "created",
      label: "Created",
      number: true,
      render: (model) => timeNode(model.created_at, ago),
    },
    {
      key: "actions",
      label: h("span.hidden-text", "Actions"),
      class: "modelactions",
      render: (model) => [
        h("a.button", { href: link("/playground", { model: addressOf(model) }) }, "Playground"),
        h("a.button", { href: link("/training", { q: model.name }) }, "Training"),
        button(null, () => remove(model, reload), { kind: "quiet", iconName: "trash", label: `Delete ${model.name}`, needs: "delete" }),
      ],
    },
  ];
  return [
    h(
      "section.card.modelcard",
      h(
        "div.tablebox",
        { tabindex: 0, role: "region", "aria-label": "Trained models" },
        table({
          columns: () => columns,
          rows: () => models,
          key: (model) => model.id,
          label: "Trained models",
          onopen: (model) => setQuery({ model: model.id }),
        }),
      ),
    ),
    () => (chosen() ? checkpoints(chosen(), reload) : h("p.dim", "Choose a model to see its checkpoints.")),
  ];
}

function checkpoints(model, reload) {
  const state = resource(() => model.id, checkpointsOf);
  return h(
    "section.card.modelcard.checkpoints",
    h(
      "header",
      h("h2", `Checkpoints of ${model.name}`),
      h(
        "div.legend",
        h("code.mono", addressOf(model)),
        copyButton(() => addressOf(model), "Copy address"),
      ),
    ),
    loaded(state, ({ data, has_more: isCut }) =>
      data.length ? [checkpointTable(model, data, reload), isCut && cutNote(data.length)] : h("p.dim", "No checkpoints yet.")),
  );
}

function checkpointTable(model, list, reload) {
  const newest = Math.max(...list.map(({ step }) => step));
  const metrics = metricNames(list);
  const isCurrent = ({ step }) => step === model.latest_step;
  const columns = [
    {
      key: "step",
      label: "Step",
      width: "150px",
      render: (row) => h("span.steptext", h("b", `step ${row.step}`), isCurrent(row) ? h("span.badge.good", "current") : null),
    },
    ...metrics.map((name) => ({ key: name, label: name, number: true, render: (row) => number(row.metrics?.[name]) })),
    { key: "bytes", label: "Size", number: true, render: (row) => bytes(row.bytes) },
    {
      key: "digest",
      label: "Digest",
      render: (row) => h("span.mono.dim", { title: row.digest }, (row.digest ?? "").slice(0, 10)),
    },
    {
      key: "job",
      label: "Job",
      render: (row) =>
        row.job_id ? h("a.ref", { href: link(`/training/${encodeURIComponent(row.job_id)}`) }, row.job_id.slice(0, 8)) : "",
    },
    {
      key: "created",
      label: "Created",
      number: true,
      render: (row) => timeNode(row.created_at, ago),
    },
    {
      key: "actions",
      label: h("span.hidden-text", "Actions"),
      class: "modelactions",
      render: (row) => [
        h("a.button", { href: link("/playground", { model: addressOf(model, row.step) }) }, "Playground"),
        isCurrent(row) ? null : button("Make current", () => rollBack(model, row.step, reload), { needs: "write" }),
        button(null, () => deleteStep(model, row.step, reload), {
          kind: "quiet",
          iconName: "trash",
          label: `Delete step ${row.step}`,
          needs: "delete",
          disabled: isCurrent(row) || row.step === newest,
        }),
      ],
    },
  ];
  return h(
    "div.tablebox",
    { tabindex: 0, role: "region", "aria-label": "Checkpoints" },
    table({ columns: () => columns, rows: () => list, key: (row) => row.id, label: "Checkpoints", keyboard: false }),
  );
}

/** Rewards and validation first; a table shows four metrics. */
function metricNames(list) {
  const names = [...new Set(list.flatMap((row) => Object.keys(row.metrics ?? {})))];
  const rank = (name) => (/reward$/.test(name) ? 0 : /^val/.test(name) ? 1 : /reward/.test(name) ? 2 : /loss/.test(name) ? 3 : 4);
  return names.sort((one, other) => rank(one) - rank(other) || one.localeCompare(other)).slice(0, 4);
}

async function rollBack(model, step, reload) {
  const place = `/v1/preview/models/${encodeURIComponent(model.id)}/rollback`;
  if (await attempt(() => send("POST", place, { step }), `${model.name} now uses step ${step}`)) reload();
}

async function deleteStep(model, step, reload) {
  if (
    !(await confirm(
      `Delete step ${step} of ${model.name}?`,
      "Its weights are deleted, and requests for this step will fail. This cannot be undone.",
    ))
  )
    return;
  const place = `/v1/preview/models/${encodeURIComponent(model.id)}/checkpoints`;
  if (await attempt(() => send("DELETE", place, { steps: [step] }), `Step ${step} deleted`)) reload();
}

async function remove(model, reload) {
  if (!(await confirm(`Delete ${model.name}?`, "Its jobs are cancelled, and its checkpoints and logs are deleted. This cannot be undone."))) return;
  if (await attempt(() => send("DELETE", `/v1/preview/models/${encodeURIComponent(model.id)}`), `${model.name} deleted`))
    reload();
}

function nothing(check) {
  const [entity, project] = projectId().split("/");
  const problem = check?.checks?.find((entry) => !entry.ok);
  return empty({
    title: "No trained models yet",
    text: problem
      ? `Training is not possible yet: ${problem.detail}.`
      : "A trainable model is a small adapter of the served one. It answers right away and improves with each job, " +
        "under the same name and without a restart.",
    code: [
      "import art",
      "from art.serverless.backend import ServerlessBackend",
      "",
      `backend = ServerlessBackend(base_url="${serverAddress()}/v1", api_key="any")`,
      `model = art.TrainableModel(name="first", entity="${entity}", project="${project}", base_model="heddle-tiny")`,
      "await model.register(backend)",
    ].join("\n"),
    action: h("a.button", { href: link("/training") }, "Training jobs"),
  });
}
