// The trainable models of a project, each with its jobs in one line, and how a first one is trained.
import { computed, h, onCleanup, signal } from "../lib/dom.js";
import { get, resource } from "../lib/data.js";
import { spark } from "../lib/chart.js";
import { ago, duration, int, number, secondsBetween } from "../lib/format.js";
import { codeBlock, empty } from "../lib/panels.js";
import { button, cutNote, dot, header, icon, loaded, searchBox, timeNode, title } from "../lib/parts.js";
import { go, link, path, projectId, query, setQuery } from "../lib/router.js";
import { keyText, serverAddress } from "../lib/setup.js";
import { table } from "../lib/table.js";

const MOST = 200;

/** The list of models in training. */
export default function TrainingJobs() {
  title("Training jobs");
  const state = resource(() => `/_ui/api/training?${new URLSearchParams({ project: projectId() })}`, get);
  const timer = setInterval(() => !document.hidden && !state.error.peek() && state.reload(), 3000);
  onCleanup(() => clearInterval(timer));
  const selection = signal(/** @type {Set<any>} */ (new Set()));
  const models = () => state.data.value?.models ?? [];
  return h(
    "div.page",
    header({
      title: "Training jobs",
      extra: () => (models().length ? h("span.count", int(models().length)) : null),
      actions: [() => compareButton(selection), button("New job", () => showNew(state), { kind: "primary", iconName: "add", needs: "write" })],
    }),
    // What is made once stays while the list is asked for again and again.
    loaded({ ...state, data: known(state) }, (isEmpty) =>
      isEmpty
        ? h(
            "div.scroll",
            { tabindex: 0, role: "region", "aria-label": "Content" },
            teach(() => state.data.value?.problem),
          )
        : list(models, selection),
    ),
  );
}

/** Whether there is nothing: null until it is known. */
const known = (state) => computed(() => (state.data.value === null ? null : !state.data.value.models.length));

function compareButton(selection) {
  const [first, ...others] = selection.value;
  if (!others.length) return null;
  return button(`Compare ${selection.value.size}`, () => go(link(path`/training/${first}`, { with: others.join(",") })), {
    iconName: "chart",
  });
}

function list(models, selection) {
  const matching = () => {
    const words = (query("q") ?? "").toLowerCase().split(/\s+/);
    return models().filter(({ name, base_model: base }) =>
      words.every((word) => `${name} ${base}`.toLowerCase().includes(word)),
    );
  };
  return [
    h(
      "div.bar-of-tools",
      searchBox(
        "Search models",
        () => query("q") ?? "",
        (text) => setQuery({ q: text }),
      ),
      () => (matching().length > MOST ? cutNote(MOST, matching().length) : null),
    ),
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Training jobs" },
      table({
        label: "Training jobs",
        columns: () => COLUMNS,
        rows: () => matching().slice(0, MOST),
        key: (row) => row.id,
        selection,
        href: (row) => link(path`/training/${row.id}`),
      }),
      () => (matching().length ? null : empty({ title: "No model with this name" })),
    ),
  ];
}

const COLUMNS = [
  {
    key: "name",
    label: "Model",
    class: "modelname",
    render: (row) => h("a", { href: link(path`/training/${row.id}`), title: row.name, dir: "auto" }, row.name),
  },
  { key: "state", label: "State", render: state },
  { key: "base", label: "Base", render: (row) => h("span.mono.dim", { title: row.base_model }, row.base_model) },
  { key: "step", label: "Step", number: true, render: (row) => int(row.step) },
  { key: "reward", label: "Reward", number: true, render: reward },
  { key: "jobs", label: "Jobs", number: true, render: (row) => int(row.jobs) },
  {
    key: "duration",
    label: "Duration",
    number: true,
    title: "From first to last job",
    render: (row) =>
      row.started_at ? duration(Math.max(0, secondsBetween(row.started_at, row.open ? new Date() : row.last_at))) : "",
  },
  {
    key: "started",
    label: "Started",
    number: true,
    render: (row) => timeNode(row.started_at ?? row.created_at, ago),
  },
];

function state(row) {
  const word = row.open?.state ?? row.state ?? "no job yet";
  const shape = {
    queued: "waiting",
    running: "running",
    publishing: "running",
    failed: "failed",
    cancelled: "cancelled",
    succeeded: "success",
  }[word];
  return h(
    "span.state",
    shape ? dot(shape) : null,
    word,
    row.failed ? h("span.badge.error", `${int(row.failed)} failed`) : null,
  );
}

function reward(row) {
  const known_ = row.rewards.filter((value) => value !== null);
  if (!known_.length) return "";
  return h(
    "span.rewardcell",
    known_.length > 1 ? spark(row.rewards, { label: `Reward from ${number(known_[0])} to ${number(known_.at(-1))}` }) : null,
    h("b", number(known_.at(-1))),
  );
}

const place = () => {
  const [entity, project] = projectId().split("/");
  return `entity="${entity}", project="${project}"`;
};

const program = () => `import asyncio
import art
from art.serverless.backend import ServerlessBackend

async def rollout(client, model):
    messages = [{"role": "user", "content": "respond with yes, no or maybe"}]
    answer = await client.chat.completions.create(model=model.get_inference_name(), messages=messages, max_tokens=8)
    reward = {"yes": 0.5, "no": 0.75, "maybe": 1.0}.get(answer.choices[0].message.content, 0.0)
    return art.Trajectory(messages_and_choices=[*messages, answer.choices[0]], reward=reward)

async def main():
    backend = ServerlessBackend(base_url="${serverAddress()}/v1", api_key="${keyText()}")
    model = art.TrainableModel(${place()}, name="maybe", base_model="heddle-tiny")
    await model.register(backend)
    client = model.openai_client()
    for _ in range(25):
        groups = [art.TrajectoryGroup([await rollout(client, model) for _ in range(8)]) for _ in range(8)]
        await backend.train(model, groups, learning_rate=2e-3)

asyncio.run(main())`;

const INSTALL = "pip install 'openpipe-art==0.5.18' 'openai>=2.14,<3' wandb pyarrow numpy";

function teach(problem) {
  return h(
    "div.teach",
    empty({
      title: "Train a model on rewards",
      text:
        "A program samples answers from the model, rewards them, and sends the groups. " +
        "One gradient step later, the same name answers with the improved policy. Its curves appear here live.",
      code: INSTALL,
      action: [
        codeBlock(program()),
        () =>
          problem()
            ? h("p.worse", problem())
            : h("p", "You can also train on calls that are already traced: ", h("b", "New job"), ", from calls."),
        h("a.button", { href: link("/traces") }, icon("calls"), "Look at the calls"),
      ],
    }),
  );
}

async function showNew(state) {
  const { newJob } = await import("./training_new.js");
  const made = await newJob(state.data.value?.models ?? [], [INSTALL, program()]);
  if (made) go(link(path`/training/${made}`));
}
