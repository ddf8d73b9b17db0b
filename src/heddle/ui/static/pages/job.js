// One training run, live: its curves, its phases, its steps and what the newest job is doing.
import { computed, effect, h, signal } from "../lib/dom.js";
import { get, live, resource, send } from "../lib/data.js";
import { attempt, confirm } from "../lib/dialog.js";
import { compact, int, number, plural } from "../lib/format.js";
import { empty, tabs, tile } from "../lib/panels.js";
import { button, dot, failure, header, skeleton, title } from "../lib/parts.js";
import { go, link, path, projectId, query } from "../lib/router.js";
import { chartControls, comparePicker, curves } from "./job_charts.js";
import { gradientRows, rowsOf } from "./job_data.js";
import { configTab, jobTab, logTab } from "./job_details.js";
import { phaseTimeline } from "./job_phases.js";
import { stepsTab } from "./job_steps.js";

const DELTA = 10;

/** The page of a model's run, named by the model's id or by that of one of its jobs. */
export default function Job({ job: id }) {
  title("Training job");
  const state = resource(() => path`/_ui/api/training/runs/${id}`, get);
  return h("div.page", () => {
    const data = state.data.value;
    if (state.error.value)
      return [header({ crumbs: crumbs(), title: "Training job" }), failure(state.error.value, state.reload)];
    return data ? show(data, state.reload) : [header({ crumbs: crumbs(), title: "Training job" }), skeleton()];
  });
}

const crumbs = () => [["Training jobs", link("/training")]];

function show(first, reload) {
  title(`${first.name} · training`);
  const run = signal(first);
  const newest = computed(() => run.value.jobs.at(-1) ?? null);
  const chosen = computed(() => run.value.jobs.find(({ id }) => id === (query("job") ?? run.value.job)) ?? newest.value);
  const readAgain = () =>
    get(path`/_ui/api/training/runs/${first.id}`).then(
      (found) => {
        run.value = found;
      },
      ({ status }) => [403, 404].includes(status) && reload(),
    );
  const stream = follow(run, readAgain);
  const events = resource(
    () => chosen.value && [chosen.value.id, chosen.value.state, chosen.value.gradient_steps],
    eventReader(),
  );
  const all = computed(() => rowsOf(run.value));
  const isTinker = () => newest.value?.kind === "tinker";
  // A run of one job so far is looked at by its gradient steps.
  const rows = computed(() => {
    const inner = all.value.filter(({ job }) => job).length > 1 ? [] : gradientRows(events.data.value?.events ?? []);
    return inner.length > 1 || isTinker() ? inner : all.value;
  });
  // What Tinker's clients train on comes in requests, which are not kept.
  const hasBodies = computed(() => !isTinker());
  const others = compared();
  const runs = () => [
    { name: run.value.name, rows: rows.value },
    ...others.value.map((other) => ({ name: other.name, rows: other.rows })),
  ];
  const models = resource(() => `/_ui/api/training?${new URLSearchParams({ project: projectId() })}`, get);
  return [
    header({
      crumbs: crumbs(),
      title: first.name,
      extra: liveBadge(newest, stream),
      actions: [shortFacts(first), cancelButton(newest)],
    }),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Training run" },
      () => problem(newest.value),
      () =>
        newest.value
          ? null
          : empty({
              title: "No jobs yet",
              text: "This model still answers like its base model. Its curves appear with the first job.",
              action: h("a.button", { href: link("/training") }, "How to train it"),
            }),
      h(
        "div.whole",
        { hidden: () => !newest.value },
        h("div.tiles", () => tiles(run.value, all.value.length ? all.value : rows.value)),
        h(
          "div.bar-of-tools.flush",
          chartControls(),
          h("span.grow"),
          comparePicker(
            () => models.data.value?.models ?? [],
            () => others.value,
            () => run.value.id,
          ),
        ),
        () => curves(runs, hasBodies.value ? (step) => go(link("/trajectories", { model: run.value.id, step })) : null),
        () => (hasBodies.value ? phaseTimeline(() => run.value.jobs) : null),
        h(
          "section.card",
          tabs("Parts of the run", [
            ["steps", "Steps", () => stepsTab(run)],
            ["job", "Job", () => jobTab(run, chosen, events)],
            ["log", "Log", () => logTab(run, chosen, events)],
            ["config", "Config", () => configTab(run, events)],
          ]),
        ),
      ),
    ),
  ];
}

/** Follow the run: jobs that changed take the place of what is known of them. */
function follow(run, onrefused) {
  const stillOpen = run
    .peek()
    .jobs.filter(({ ended_at: ended }) => ended === null)
    .map(({ number: place }) => place);
  const after = stillOpen.length ? Math.min(...stillOpen) : (run.peek().jobs.at(-1)?.number ?? 0) + 1;
  return live(`${path`/_ui/api/training/runs/${run.peek().id}`}/live?after=${after}`, ({ jobs, ...more }) => {
    const known = new Map(run.peek().jobs.map((job) => [job.id, job]));
    for (const job of jobs) known.set(job.id, job);
    const latest = more.checkpoints?.at(-1)?.step;
    run.value = {
      ...run.peek(),
      ...more,
      ...(latest === undefined ? {} : { latest_step: latest }),
      jobs: [...known.values()].sort((a, b) => a.number - b.number),
    };
  }, onrefused);
}

/** Reads the events of a job; of the same job only those that came since. */
function eventReader() {
  let known = { id: "", events: [] };
  return async ([id], abort) => {
    const before = known.id === id ? known.events : [];
    const found = await get(eventsOf(id, before.at(-1)?.seq ?? -1), abort);
    known = { ...found, events: [...before, ...found.events] };
    return known;
  };
}

const eventsOf = (job, after = -1) => `/_ui/api/training/events?${new URLSearchParams({ job, after: String(after) })}`;

/** Another run with its rows; those of a run of Tinker's protocol are its gradient steps. */
async function readRun(id) {
  const run = await get(path`/_ui/api/training/runs/${id}`);
  const [job] = run.jobs;
  if (job?.kind !== "tinker") return { ...run, rows: rowsOf(run) };
  return { ...run, rows: gradientRows((await get(eventsOf(job.id))).events) };
}

function compared() {
  const found = signal(/** @type {any[]} */ ([]));
  effect(() => {
    const ids = (query("with") ?? "").split(",").filter(Boolean).slice(0, 4);
    Promise.all(ids.map((id) => readRun(id).catch(() => null))).then((runs) => {
      if (ids.join() === (query("with") ?? "").split(",").filter(Boolean).slice(0, 4).join())
        found.value = runs.filter(Boolean);
    });
  });
  return found;
}

function liveBadge(newest, stream) {
  return h("span.livebadge", { role: "status" }, () => {
    const job = newest.value;
    if (!job) return null;
    const isOpen = job.ended_at === null;
    if (isOpen && !stream.up.value) return [dot("waiting"), "reconnecting"];
    if (!isOpen) return [dot({ failed: "failed", cancelled: "cancelled" }[job.state] ?? "success"), job.state];
    return [
      dot(job.state === "queued" ? "waiting" : "running"),
      job.cancel_asked ? "being cancelled" : job.state === "queued" ? "waiting" : "live",
    ];
  });
}

function shortFacts(run) {
  return h(
    "span.dim.one-line",
    { title: `${run.base_model}, LoRA of rank ${run.lora.rank}` },
    `${run.base_model} · LoRA r${run.lora.rank}`,
  );
}

function cancelButton(newest) {
  const cancel = async () => {
    const job = newest.peek();
    if (
      !(await confirm("Cancel this job?", "It stops after the current gradient step. Earlier steps are kept.", {
        action: "Cancel job",
      }))
    )
      return;
    await attempt(() => send("POST", path`/v1/preview/training-jobs/${job.id}` + "/cancel"), "Cancelling the job");
  };
  return () =>
    newest.value?.ended_at === null && newest.value.kind !== "tinker" && !newest.value.cancel_asked
      ? button("Cancel job", cancel, { kind: "danger", iconName: "stop", needs: "write" })
      : null;
}

function problem(job) {
  if (job?.state !== "failed") return null;
  return h(
    "div.failure",
    { role: "alert" },
    h(
      "div",
      h("b", `The newest job failed${job.step === null ? "" : ` at step ${job.step}`}`),
      h("p", { dir: "auto" }, job.error ?? ""),
    ),
  );
}

function tiles(run, rows) {
  const last = (name) => rows.findLast((row) => Number.isFinite(row[name]));
  const delta = (name) => {
    const known = rows.filter((row) => Number.isFinite(row[name]));
    const before = known[Math.max(0, known.length - 1 - DELTA)];
    if (known.length < 2) return "";
    const change = known.at(-1)[name] - before[name];
    return `${change >= 0 ? "▲" : "▼"} ${number(Math.abs(change))} in ${plural(known.at(-1).step - before.step, "step")}`;
  };
  const shown = (name, label, note) => (last(name) ? tile(label, number(last(name)[name]), note ?? delta(name)) : null);
  const open = run.jobs.at(-1)?.ended_at === null ? run.jobs.at(-1) : null;
  const isTinker = run.jobs.at(-1)?.kind === "tinker";
  const steps = open?.planned === null ? "the next is being prepared" : `${open?.gradient_steps} of ${open?.planned} gradient steps of the next`;
  const next = open && steps;
  const rate = last("tokens_per_second")?.tokens_per_second;
  const speed = rate ? `${compact(rate)} tokens/s` : "";
  return [
    shown("reward", "Reward"),
    shown("validation", "Validation", last("validation") ? `at step ${last("validation").step}` : ""),
    shown("loss/kl_policy_ref", "KL", "to the reference"),
    shown("loss/train", "Loss"),
    isTinker
      ? tile("Gradient steps", int(run.jobs.at(-1).gradient_steps), speed)
      : tile("Step", int(run.checkpoints.at(-1)?.step ?? 0), next ?? speed),
  ];
}
