// Making and changing a rule.
import { computed, h, signal } from "../lib/dom.js";
import { get, postProject } from "../lib/data.js";
import { dialog, storeOver } from "../lib/dialog.js";
import { nameOf } from "../lib/format.js";
import { codeBlock, field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { projectId } from "../lib/router.js";
import { targetsEditor, targetsOf } from "./alerts_targets.js";
import { METRICS, WINDOWS, windowText } from "./alerts_words.js";

const OPERATORS = [
  [">", "is above"],
  [">=", "is at or above"],
  ["<", "is below"],
  ["<=", "is at or below"],
];

/** A rule as /alerts/update takes it. */
export const bodyOf = (alert) => ({ id: alert.id, after: alert.digest, name: alert.name, enabled: alert.enabled, ...alert.rule });

/**
 * Open the form for a rule, or for a new one that begins as `initial` (a name and a rule); the secret of a new one is
 * shown once.
 */
export async function editAlert(alert, reload, initial = null) {
  const done = await dialog(alert ? `Edit ${alert.name}` : "New alert", (close) => formOf(alert, initial ?? alert, close));
  if (!done) return;
  reload();
  if (done.secret && targetsOf(done.alert.rule).some(({ kind }) => kind === "webhook")) await showSecret(done);
}

function formOf(alert, initial, close) {
  const rule = initial?.rule ?? { metric: "error_share", operator: ">", threshold: 0.05, window_seconds: 3600 };
  const metric = signal(rule.metric);
  const unit = computed(() => METRICS[metric.value].unit);
  const problem = h("p.problem", { role: "alert" }, initial?.problem);
  const targets = targetsEditor(rule);
  const select = (name, options, value, rest = {}) =>
    h(
      "select",
      { name, ...rest },
      options.map(([key, text]) => h("option", { value: key, selected: key === value }, text)),
    );
  const windows = WINDOWS.some(([seconds]) => seconds === rule.window_seconds)
    ? WINDOWS
    : [...WINDOWS, [rule.window_seconds, windowText(rule.window_seconds)]];
  const names = Object.entries(METRICS).map(([name, { label }]) => [name, label]);
  const onsubmit = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    try {
      const done = await save(alert, rule, new FormData(event.currentTarget), targets.read());
      if (done) close(done);
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return h(
    "form",
    { onsubmit },
    field(
      "Name",
      h("input", {
        name: "name",
        value: initial?.name ?? "",
        required: true,
        maxlength: 200,
        autofocus: true,
        placeholder: "Too many errors",
      }),
    ),
    h(
      "div.formrow",
      field(
        "When",
        select("metric", names, rule.metric, {
          onchange: (event) => {
            metric.value = event.target.value;
          },
        }),
      ),
      field("Condition", select("operator", OPERATORS, rule.operator)),
      h(
        "label.field",
        h("span", () => (unit.value ? `Threshold, ${unit.value}` : "Threshold")),
        h("input", { name: "threshold", type: "number", step: "any", required: true, value: thresholdText(rule) }),
      ),
    ),
    () =>
      metric.value === "score"
        ? h(
            "div.formrow",
            field("Scorer", h("input", { name: "scorer", required: true, value: rule.scorer ?? "", placeholder: "helpfulness" })),
            field(
              "Path in its output",
              h("input", { name: "score_path", value: rule.score_path ?? "", placeholder: "score.value" }),
              "Optional",
            ),
          )
        : null,
    h(
      "div.formrow",
      field(
        "Over the last",
        select(
          "window",
          windows.map(([seconds, text]) => [String(seconds), text]),
          String(rule.window_seconds),
        ),
      ),
      () =>
        metric.value === "count"
          ? null
          : field(
              "Minimum number of calls",
              h("input", { name: "minimum", type: "number", min: 1, value: rule.minimum_calls ?? "", placeholder: "1" }),
            ),
    ),
    opField(rule),
    rule.query ? h("p.dim", "Only calls that match this rule's query.") : null,
    h(
      "label.check",
      h("input", { type: "checkbox", name: "roots", checked: Boolean(rule.filter?.trace_roots_only) }),
      h("span", "Root calls only"),
    ),
    targets.view,
    h(
      "label.check",
      h("input", { type: "checkbox", name: "enabled", checked: alert?.enabled ?? true }),
      h("span", "Enabled"),
    ),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, alert ? "Save" : "Create alert"),
    ),
  );
}

const thresholdText = (rule) => Number((rule.threshold * METRICS[rule.metric].factor).toPrecision(12));

/** The names that people read, each once. */
const namesOf = (refs) => [...new Set(refs.map(nameOf))];

function opField(rule) {
  const options = h("datalist", { id: "alert-ops" });
  get(`/_ui/api/ops?project=${encodeURIComponent(projectId())}`).then(
    ({ ops }) => options.append(...ops.map(({ name }) => h("option", { value: name }))),
    () => {},
  );
  const value = namesOf(rule.filter?.op_names ?? []).join(", ");
  return field(
    "Only calls of op",
    [h("input", { name: "op", list: "alert-ops", value, placeholder: "all calls", autocomplete: "off" }), options],
    "Separate several names with commas.",
  );
}

async function save(alert, rule, data, targets) {
  const metric = String(data.get("metric"));
  const isScore = metric === "score";
  const minimum = metric !== "count" && data.get("minimum") ? Number(data.get("minimum")) : null;
  // What this form does not know (a query, other parts of the filter) stays as it is.
  const { op_names: before, trace_roots_only: ignored, ...others } = rule.filter ?? {};
  const filter = {
    ...others,
    op_names: await opNames(String(data.get("op") ?? ""), before),
    ...(data.get("roots") ? { trace_roots_only: true } : {}),
  };
  const body = {
    ...(alert && { id: alert.id }),
    name: String(data.get("name")).trim(),
    enabled: data.get("enabled") !== null,
    metric,
    operator: data.get("operator"),
    threshold: Number(data.get("threshold")) / METRICS[metric].factor,
    window_seconds: Number(data.get("window")),
    filter: Object.values(filter).some((value) => value != null) ? filter : null,
    query: rule.query ?? null,
    scorer: isScore ? data.get("scorer") : null,
    score_path: isScore ? data.get("score_path") || null : null,
    minimum_calls: minimum,
    ...targets,
  };
  if (!alert) return postProject("/alerts/create", body);
  return storeOver("alert", "Their changes are lost.", (after) => postProject("/alerts/update", { ...body, after }), alert.digest);
}

/** Names of ops as filters want them: all versions of a published op, the bare name of any other. */
async function opNames(text, before) {
  const names = text
    .split(",")
    .map((name) => name.trim())
    .filter(Boolean);
  if (!names.length) return null;
  if (before && names.join() === namesOf(before).join()) return before;
  const { ops } = await get(`/_ui/api/ops?project=${encodeURIComponent(projectId())}`);
  return names.flatMap((name) => {
    const refs = Object.keys(ops.find((op) => op.name === name)?.versions ?? {});
    const published = refs.find((ref) => ref.startsWith("weave:///"));
    const bare = refs.filter((ref) => !ref.startsWith("weave:///"));
    return [
      ...(published ? [`${published.split(":").slice(0, -1).join(":")}:*`] : []),
      ...(bare.length || !published ? [name] : []),
    ];
  });
}

function showSecret({ alert, secret }) {
  return dialog("Signing secret", (close) => [
    h(
      "p",
      `Messages of ${alert.name} are signed with this secret ` +
        "(Standard Webhooks, header webhook-signature). It is shown only once.",
    ),
    codeBlock(secret),
    h(
      "div.actions",
      button("Done", () => close(true), { kind: "primary", autofocus: true }),
    ),
  ]);
}
