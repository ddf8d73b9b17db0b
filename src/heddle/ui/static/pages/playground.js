// The playground: one prompt, one to four models that answer it side by side.
import { computed, each, effect, h, onCleanup } from "../lib/dom.js";
import { get, resource } from "../lib/data.js";
import { modeSwitch } from "../lib/value.js";
import { attempt, menu } from "../lib/dialog.js";
import { empty } from "../lib/panels.js";
import { button, failure, page, title } from "../lib/parts.js";
import { query } from "../lib/router.js";
import { columnView } from "./playground_column.js";
import { chooseCall, choosePrompt, loadCall, loadPrompt } from "./playground_load.js";
import { promptEditor } from "./playground_prompt.js";
import { runColumn } from "./playground_run.js";
import { savePrompt } from "./playground_save.js";
import { columnOf, MOST_COLUMNS, playgroundState, setPrompt } from "./playground_state.js";

const OFFERED = 30;

/** The page; `call`, `prompt` and `model` in the address say what it begins with. */
export default function Playground() {
  title("Playground");
  const state = playgroundState();
  askModels(state, query("model"));
  const models = resource(() => "models", readModels);
  const source = resource(
    () => (sourceKey() ? { key: sourceKey(), call: query("call"), prompt: query("prompt") } : null),
    (asked) => begin(state, asked),
  );
  effect(() => {
    state.served.value = (models.data.value?.list ?? []).slice(0, OFFERED).map(({ id }) => id);
    chooseModels(state, models.data.value);
  });
  const isRunning = computed(() => state.columns.value.some((column) => column.answer.value?.state === "running"));
  const runAll = () => {
    for (const column of state.columns.peek()) runColumn(state, column);
  };
  const stopAll = () => {
    for (const column of state.columns.peek()) column.abort?.abort();
  };
  bindKeys(runAll, () => isRunning.peek() && stopAll());
  onCleanup(stopAll);
  const columns = h("div.answercolumns", { style: () => ({ "--columns": String(state.columns.value.length) }) });
  each(
    columns,
    () => state.columns.value,
    (column) => column.id,
    (held, column) => columnView(state, column, () => state.columns.value.indexOf(column) + 1),
  );
  return page(
    {
      title: "Playground",
      actions: [
        () => actionsOf(state),
        () =>
          isRunning.value
            ? button(["Stop ", h("kbd", "Esc")], stopAll, { iconName: "stop" })
            : button(["Run ", h("kbd", "Ctrl ↵")], runAll, {
                kind: "primary",
                iconName: "play",
                needs: "write",
                disabled: () => !state.columns.value.some((column) => column.model.value),
              }),
      ],
    },
    [
      h("datalist", { id: "playground-models" }, () =>
        (models.data.value?.list ?? []).map((entry) => h("option", { value: entry.id }, entry.note)),
      ),
      () => [source, models].map((asked) => (asked.error.value ? failure(asked.error.value, asked.reload) : null)),
      h("div.playground", promptEditor(state, () => originOf(state, models.data.value)), () =>
        models.data.value && !models.data.value.list.length ? noModels(models.data.value.problem, models.reload) : columns,
      ),
    ],
    { fixed: true },
  );
}

/** What the address asks to begin with, as one text; empty for the draft of last time. */
const sourceKey = () => (query("call") ? `call ${query("call")}` : query("prompt") ? `prompt ${query("prompt")}` : "");

/** The models that the address names: one takes the first column, several take all of them. */
function askModels(state, asked) {
  const names = (asked ?? "").split(",").filter(Boolean).slice(0, MOST_COLUMNS);
  const known = state.columns.peek();
  if (names.length > 1) state.columns.value = names.map((model, index) => known[index] ?? columnOf({ model }));
  for (const [index, model] of names.entries()) state.columns.peek()[index].model.value = model;
}

/** Load what the address names, unless the draft began with it and was changed since. */
async function begin(state, { key, call, prompt }) {
  if (state.source.peek() === key) return true;
  state.origin.value = call ? await loadCall(state, call) : await loadPrompt(state, prompt);
  state.source.value = key;
  return true;
}

/** The models that answer here, and those of providers whose prices are known. */
async function readModels(_, abort) {
  const [own, known] = await Promise.allSettled([get("/v1/models", abort), get("/inference/modelsdev/models", abort)]);
  // Without its own model the server may still answer with those of providers.
  if (own.status === "rejected" && known.status === "rejected") throw own.reason;
  const list =
    own.status === "fulfilled"
      ? own.value.data.map((model) => ({ id: model.id, note: model.parent ? `adapter of ${model.parent}` : "this server" }))
      : [];
  const providers = known.status === "fulfilled" ? Object.values(known.value).filter((provider) => provider.id !== "heddle") : [];
  for (const provider of providers)
    list.push(...Object.keys(provider.models).map((name) => ({ id: `${provider.id}/${name}`, note: provider.name })));
  return { list, problem: own.status === "rejected" ? own.reason.message : "" };
}

/** The first column gets the model that is asked for, where this server has it; columns without one the server's own. */
function chooseModels(state, models) {
  const wanted = state.wanted.value;
  const fallback = models?.list[0]?.id ?? "";
  if (wanted && models) {
    const known = models.list.find(({ id }) => id === wanted || id.endsWith(`/${wanted}`))?.id;
    const isAddress = /[/@:]/.test(wanted);
    const [first] = state.columns.peek();
    first.model.value = known ?? (isAddress || !fallback ? wanted : fallback);
    state.wanted.value = "";
  }
  for (const column of state.columns.value) if (!column.model.peek() && fallback) column.model.value = fallback;
}

/** Where the prompt came from, the way back there, and why another model may answer. */
function originOf(state, models) {
  const origin = sourceKey() && state.source.value === sourceKey() ? state.origin.value : null;
  if (!origin) return null;
  const { model } = origin;
  const isHere = !models?.list.length || models.list.some(({ id }) => id === model || id.endsWith(`/${model}`));
  return h(
    "p.origin",
    query("call") ? "From the call " : "From the prompt ",
    h("a.ref", { href: origin.href, dir: "auto" }, origin.name),
    model && !isHere ? [", which asked ", h("b", model), ". This server does not have it, so another model answers."] : ".",
  );
}

function bindKeys(run, stop) {
  const listen = (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      run();
    } else if (event.key === "Escape") stop();
  };
  addEventListener("keydown", listen);
  onCleanup(() => removeEventListener("keydown", listen));
}

function actionsOf(state) {
  const add = () => {
    const last = state.columns.peek().at(-1);
    state.columns.value = [...state.columns.peek(), columnOf({ model: last.model.peek(), parameters: last.parameters.peek() })];
  };
  const clear = () =>
    setPrompt(
      state,
      [
        { role: "system", content: "You are a helpful assistant." },
        { role: "user", content: "" },
      ],
      { tools: "", schema: "" },
    );
  return [
    modeSwitch(),
    menu(
      "Load",
      [
        ["From a call…", chooseCall, { iconName: "calls" }],
        ["From a prompt…", choosePrompt, { iconName: "objects" }],
        ["Start over", clear, { iconName: "undo" }],
      ],
      { iconName: "folder" },
    ),
    button("Save prompt", () => attempt(() => savePrompt(state)), { iconName: "save", needs: "write" }),
    button("Add column", add, { iconName: "columns", disabled: () => state.columns.value.length >= MOST_COLUMNS }),
  ];
}

function noModels(problem, reload) {
  return h(
    "div.nomodels",
    empty({
      title: "No model is available",
      text: problem || "The server was started without a model. Start it with one, or name a model provider.",
      code: [
        "pip install '.[inference]'",
        "heddle serve --model heddle-tiny        # the small model in the package",
        "heddle serve --model Qwen/Qwen3-0.6B     # a model from the hub, or a folder",
        "heddle serve --providers 'openai=https://api.openai.com/v1,OPENAI_API_KEY'",
      ].join("\n"),
      action: h("p", "Each column then lists the model. ", button("Try again", reload, { iconName: "refresh" })),
    }),
  );
}
