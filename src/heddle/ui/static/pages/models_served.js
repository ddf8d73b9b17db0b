// The models that this server answers for, with their state, price and use.
import { h } from "../lib/dom.js";
import { bytes, compact, duration, int, money, number, percent } from "../lib/format.js";
import { empty, facts } from "../lib/panels.js";
import { dot } from "../lib/parts.js";
import { link, projectId } from "../lib/router.js";
import { table } from "../lib/table.js";

const STATES = { running: "running", idle: "success", ready: "success", loading: "running", failed: "error", off: "waiting" };

/** The table of /v1/models with what is known of each. */
export function servedView({ models, engines, usage, prices }) {
  if (!models.length) return nothing();
  const rows = models.map((model) => {
    const used = usage.find((entry) => entry.model === model.id || entry.model === model.root);
    return {
      ...model,
      used,
      price: prices.find((entry) => entry.model === model.id)?.price ?? null,
      engine: engines.find((entry) => entry.model === (model.parent ?? model.id)),
    };
  });
  const columns = [
    { key: "name", label: "Model", width: "30%", class: "modelcell", render: nameCell },
    {
      key: "state",
      label: "State",
      render: ({ engine }) =>
        engine ? h("span.modelstate", { title: engine.error ?? "" }, dot(STATES[engine.state] ?? "waiting"), engine.state) : "",
    },
    { key: "context", label: "Context", number: true, render: (model) => int(model.max_model_len) },
    { key: "price", label: "Price in / out", number: true, title: "Dollars per million tokens", render: priceCell },
    {
      key: "requests",
      label: "Requests, 30 d",
      number: true,
      render: ({ used }) => (used ? int(used.requests) : h("span.faint", "0")),
    },
    {
      key: "errors",
      label: "Errors",
      number: true,
      render: ({ used }) =>
        used?.requests ? h("span", { class: used.errors ? "worse" : "dim" }, percent(used.errors / used.requests)) : "",
    },
    {
      key: "tokens",
      label: "Tokens",
      number: true,
      render: ({ used }) =>
        used
          ? h("span", { title: `${int(used.prompt_tokens)} in, ${int(used.completion_tokens)} out` }, compact(used.total_tokens))
          : "",
    },
    { key: "latency", label: "p50 latency", number: true, render: ({ used }) => duration(used?.latency.p50) },
    { key: "cost", label: "Cost", number: true, render: ({ used }) => money(used?.cost) },
    { key: "actions", label: h("span.hidden-text", "Actions"), class: "modelactions", render: actions },
  ];
  return [
    h(
      "section.card.modelcard.served",
      h(
        "div.tablebox",
        { tabindex: 0, role: "region", "aria-label": "Served models" },
        table({
          columns: () => columns,
          rows: () => rows,
          key: (model) => model.id,
          label: "Served models",
          href: (model) => link("/playground", { model: model.id }),
        }),
      ),
    ),
    engines.filter((engine) => engine.device).map(engineCard),
  ];
}

function nameCell(model) {
  const note = model.parent ? `adapter of ${model.parent}, step ${model.root.split("@").at(-1)}` : "base model";
  return h(
    "div.modeltext",
    h("a", { href: link("/playground", { model: model.id }), title: model.id }, shortName(model.id)),
    h("span.dim", { title: model.root }, note),
  );
}

/** The name in an address "wandb-artifact:///entity/project/name", with its project where that is another one. */
export function shortName(id) {
  const address = id.replace(/^wandb-artifact:\/\/\//, "");
  return address.startsWith(`${projectId()}/`) ? address.slice(projectId().length + 1) : address;
}

function priceCell(model) {
  if (!model.price)
    return h("a.plainlink", { href: link("/costs", { view: "prices", q: model.id }) }, h("span.badge.warn", "no price"));
  return `$${number(model.price.prompt)} / $${number(model.price.completion)}`;
}

function actions(model) {
  return [
    h("a.button", { href: link("/playground", { model: model.id }) }, "Playground"),
    h("a.button", { href: link("/evaluations", { q: shortName(model.id).split("/").at(-1) }) }, "Evaluations"),
  ];
}

function engineCard(engine) {
  return h(
    "section.card",
    h("header", h("h2", `Engine of ${engine.model}`), h("a.ref", { href: link("/inference") }, "Inference")),
    facts([
      ["Device", engine.device],
      ["Number type", engine.dtype],
      ["Memory", bytes(engine.resident_bytes)],
      ["Loaded in", duration(engine.load_seconds)],
      ["Adapters", int(engine.adapters)],
      ["Running", int(engine.running)],
      ["Waiting", int(engine.waiting)],
      ["Cache hits", percent(engine.prefix_hit_rate)],
      ["Problem", engine.error],
    ]),
  );
}

function nothing() {
  return empty({
    title: "No model is served",
    text:
      "This server can answer chat completions itself, on a CPU or a GPU, and trace each of them. " +
      "Start it with a model from a folder:",
    code: "pip install '.[inference]'\nheddle serve --model ./path/to/model",
    action: h("a.button", { href: link("/inference") }, "Inference"),
  });
}
