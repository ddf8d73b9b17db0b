// What a step was trained on: groups with their rewards and advantages, and each trajectory as chat and as tokens.
import { computed, h } from "../lib/dom.js";
import { SERIES, bars } from "../lib/chart.js";
import { get, resource } from "../lib/data.js";
import { exact, int, number } from "../lib/format.js";
import { card, empty, facts } from "../lib/panels.js";
import { header, icon, keys, loaded, segments, title } from "../lib/parts.js";
import { link, path, projectId, query, setQuery } from "../lib/router.js";
import { groupList, inOrder } from "./trajectories_groups.js";
import { trajectoryView } from "./trajectories_one.js";

const BINS = 20;

/** The page of trajectories: `?model=`, `?step=` or `?body=`, `?sort=`, `?at=group.index`. */
export default function Trajectories() {
  title("Trajectories");
  const models = resource(() => `/_ui/api/training?${new URLSearchParams({ project: projectId() })}`, get);
  const model = computed(() => {
    const all = models.data.value?.models ?? [];
    const wanted = query("model");
    return (
      (wanted ? all.find(({ id, name }) => id === wanted || name === wanted) : all.find(({ jobs }) => jobs > 0)) ??
      (wanted ? { id: wanted, name: "" } : null)
    );
  });
  const modelId = computed(() => model.value?.id ?? null);
  const bodies = resource(() => modelId.value && `/_ui/api/trajectories?${new URLSearchParams({ model: modelId.value })}`, get);
  const chosen = computed(() => choose(bodies.data.value?.bodies ?? []));
  const asked = computed(() =>
    chosen.value && modelId.value ? new URLSearchParams({ model: modelId.value, body: chosen.value.body }).toString() : null,
  );
  const groups = resource(() => asked.value && `/_ui/api/trajectories/groups?${asked.value}`, get);
  const pickers = () =>
    models.data.value?.models.length ? [modelPicker(models, modelId), () => bodyPicker(bodies, chosen)] : null;
  return h(
    "div.page",
    header({
      title: "Trajectories",
      actions: () =>
        modelId.value && model.value.name
          ? h("a.button", { href: link(path`/training/${modelId.value}`) }, icon("chart"), "Training curves")
          : null,
    }),
    loaded(models, () => () => {
      if (!modelId.value) return teach();
      return [
        h("div.bar-of-tools", pickers(), h("span.grow"), sortPicker()),
        loaded(bodies, () => () => (chosen.value ? content(groups, asked) : nothingYet())),
      ];
    }),
  );
}

function choose(bodies) {
  const [body, job, step] = [query("body"), query("job"), query("step")];
  if (body || job) return bodies.find((one) => one.body === (body ?? `job:${job}`)) ?? null;
  if (step)
    return (
      bodies.find((one) => String(one.step) === step && one.split === "train") ??
      bodies.find((one) => String(one.step) === step) ??
      null
    );
  return bodies.find(({ state, split }) => split === "train" && state === "succeeded") ?? bodies[0] ?? null;
}

const reset = { at: null, body: null, step: null, job: null };

function modelPicker(models, modelId) {
  return h(
    "label.inline",
    h("span.dim", "Model"),
    h("select", { "aria-label": "Model", onchange: (event) => setQuery({ ...reset, model: event.target.value }, false) }, () =>
      (models.data.value?.models ?? []).map(({ id, name }) => h("option", { value: id, selected: id === modelId.value }, name)),
    ),
  );
}

function bodyPicker(bodies, chosen) {
  const text = (one) => {
    const step = one.step === null ? "No steps yet" : `Step ${one.step}`;
    const split = one.split === "train" ? "" : `, logged as ${one.split}`;
    return step + split + (typeof one.reward === "number" ? ` (reward ${number(one.reward)})` : "");
  };
  return h(
    "label.inline",
    h("span.dim", "Step"),
    h(
      "select",
      { "aria-label": "Step", onchange: (event) => setQuery({ ...reset, body: event.target.value }, false) },
      (bodies.data.value?.bodies ?? [])
        .slice(0, 500)
        .map((one) =>
          h("option", { value: one.body, selected: one.body === chosen.value?.body, title: exact(one.at) }, text(one)),
        ),
    ),
  );
}

const sortPicker = () =>
  segments(
    "Order of the groups",
    [
      ["spread", "Spread"],
      ["best", "Best"],
      ["worst", "Worst"],
      ["sent", "As sent"],
    ],
    () => query("sort") ?? "spread",
    (value) => setQuery({ sort: value === "spread" ? null : value }),
  );

function content(groups, asked) {
  return loaded(groups, (data) => {
    const ordered = computed(() => inOrder(data.groups, query("sort") ?? "spread"));
    const places = () =>
      ordered.value.flatMap(({ group, trajectories }) => trajectories.map((_, index) => `${group}.${index}`));
    const step = (by) => {
      const all = places();
      const next = all[Math.max(0, Math.min(all.length - 1, all.indexOf(query("at") ?? "") + by))];
      if (next) setQuery({ at: next });
    };
    keys({ j: [() => step(1), "next trajectory"], k: [() => step(-1), "previous trajectory"] });
    const at = computed(() => query("at") ?? bestOf(ordered.value));
    return h(
      "div.split.trajectories.listdetail",
      { class: () => (query("at") ? "chosen" : "") },
      h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Groups" }, figures(data.groups), groupList(ordered, at)),
      trajectoryView(asked, at, data.groups),
    );
  });
}

/** The best trajectory of the first group, as the one to begin with. */
function bestOf(groups) {
  const first = groups.find(({ trajectories }) => trajectories.length);
  if (!first) return null;
  const rewards = first.trajectories.map(({ reward }) => reward);
  return `${first.group}.${rewards.indexOf(Math.max(...rewards))}`;
}

function figures(groups) {
  const rewards = groups.flatMap(({ trajectories }) => trajectories.map(({ reward }) => reward));
  const mean = rewards.length ? rewards.reduce((sum, value) => sum + value, 0) / rewards.length : null;
  const failed = groups.reduce((sum, { exceptions }) => sum + exceptions.length, 0);
  return card(
    "Rewards",
    null,
    facts([
      ["Groups", int(groups.length)],
      ["Trajectories", int(rewards.length)],
      ["Mean reward", mean === null ? null : number(mean)],
      ["Groups that teach", int(groups.filter(({ spread }) => spread > 0).length)],
      ["Failed rollouts", failed ? h("span.worse", int(failed)) : "0"],
    ]),
    rewards.length ? bars({ bins: () => histogram(rewards), label: "Distribution of rewards", height: 110 }) : null,
  );
}

function histogram(rewards) {
  const values = [...new Set(rewards)].sort((a, b) => a - b);
  if (values.length <= BINS)
    return values.map((value) => ({
      from: value,
      count: rewards.filter((reward) => reward === value).length,
      color: SERIES[0],
    }));
  const [low, high] = [values[0], values.at(-1)];
  const width = (high - low) / BINS;
  const bins = Array.from({ length: BINS }, (_, index) => ({ from: low + index * width, count: 0, color: SERIES[0] }));
  for (const reward of rewards) bins[Math.min(BINS - 1, Math.floor((reward - low) / width))].count += 1;
  return bins;
}

function teach() {
  return empty({
    title: "No trajectories yet",
    text:
      "When a program trains a model here, this page shows what it sent: " +
      "groups, rewards, advantages and every conversation with the trained tokens.",
    action: h("a.button", { href: link("/training") }, icon("chart"), "Train a model"),
  });
}

function nothingYet() {
  return empty({
    title: "Nothing at this step",
    text: "No trajectories were sent or logged for it; choose another step or model above.",
  });
}
