// The dialog that makes or changes a leaderboard.
import { each, h, signal } from "../lib/dom.js";
import { storeObject } from "../lib/data.js";
import { dialog, toast } from "../lib/dialog.js";
import { parseRef } from "../lib/format.js";
import { field } from "../lib/panels.js";
import { button } from "../lib/parts.js";
import { metricsOf } from "../lib/leaderboard.js";
import { loadEvaluations } from "../lib/runs.js";
import { objectName } from "../lib/scorerkinds.js";

/** Edit a leaderboard, or a new one; resolves to the name of its object, or null. */
export async function editLeaderboard(board) {
  const about = await loadEvaluations();
  const evaluations = about.list
    .filter((object) => object.is_latest || board?.columns.some((column) => column.evaluation === object.ref))
    .reverse();
  const named = [...new Set(board?.columns.map((column) => column.evaluation) ?? [])].filter((ref) => ref && !about.byRef.has(ref));
  evaluations.push(...named.map((ref) => ({ ref, object_id: parseRef(ref)?.name ?? ref, gone: true })));
  if (!evaluations.length) {
    toast("No evaluations yet: create one first");
    return null;
  }
  return dialog(board ? "Edit leaderboard" : "New leaderboard", (close) => editor(board, evaluations, close), { wide: true });
}

function editor(board, evaluations, close) {
  let count = 0;
  const fresh = (column = null) => ({
    id: ++count,
    column: column ?? { evaluation: evaluations[0].ref, scorer: "", path: "", isLess: false },
  });
  const columns = signal(board?.columns.length ? board.columns.map(fresh) : [fresh()]);
  const problem = h("p.problem", { role: "alert" });
  const name = h("input", { type: "text", required: true, value: board?.label || board?.name || "", autocomplete: "off" });
  const text = h("textarea", { rows: 2, value: board?.text ?? "" });
  const remove = (id) => {
    columns.value = columns.value.filter((entry) => entry.id !== id);
  };
  const list = each(
    h("div.boardcolumns"),
    () => columns.value,
    (entry) => entry.id,
    (_, entry) => columnEditor(entry, evaluations, () => remove(entry.id)),
  );
  const submit = async (event) => {
    event.preventDefault();
    try {
      const chosen = columns.peek().map(({ column }) => column);
      if (!chosen.length || chosen.some((column) => !column.scorer))
        throw new Error("Add at least one metric, and complete each of them");
      close(await store(board?.name ?? objectName(name.value), { label: name.value, text: text.value, columns: chosen, after: board?.digest ?? "" }));
    } catch (error) {
      problem.textContent = error.message;
    }
  };
  return h(
    "form",
    { onsubmit: submit },
    field("Name", name),
    field("Description", text),
    h(
      "fieldset",
      h("legend", h("b", "Metrics")),
      list,
      button(
        "Add metric",
        () => {
          columns.value = [...columns.value, fresh()];
        },
        { kind: "quiet", iconName: "add" },
      ),
    ),
    problem,
    h(
      "div.actions",
      button("Cancel", () => close()),
      h("button.button.primary", { type: "submit" }, "Save"),
    ),
  );
}

function columnEditor({ column }, evaluations, remove) {
  const metrics = signal([]);
  const loading = signal(true);
  const load = async () => {
    const own = column.scorer
      ? [{ scorer: column.scorer, path: column.path, text: [column.scorer, column.path].filter(Boolean).join(".") }]
      : [];
    // What is chosen already can be saved before the others are known.
    metrics.value = own;
    loading.value = true;
    const { evaluation } = column;
    const found = await metricsOf(evaluation).catch(() => []);
    if (column.evaluation !== evaluation) return;
    metrics.value = [...own.filter(({ text }) => !found.some((metric) => metric.text === text)), ...found];
    if (!column.scorer && found.length) Object.assign(column, { scorer: found[0].scorer, path: found[0].path });
    loading.value = false;
  };
  load();
  const choose = (text) => {
    const metric = metrics.peek().find((entry) => entry.text === text);
    if (metric) Object.assign(column, { scorer: metric.scorer, path: metric.path });
  };
  const current = () => [column.scorer, column.path].filter(Boolean).join(".");
  return h(
    "div.boardcolumn",
    h(
      "select",
      {
        "aria-label": "Evaluation",
        onchange: (event) => {
          Object.assign(column, { evaluation: event.target.value, scorer: "", path: "" });
          load();
        },
      },
      evaluations.map((object) =>
        h(
          "option",
          { value: object.ref, selected: object.ref === column.evaluation },
          `${object.object_id} ${object.gone ? "(deleted)" : `v${object.version_index}`}`,
        ),
      ),
    ),
    () =>
      h(
        "select",
        { "aria-label": "Metric", required: true, onchange: (event) => choose(event.target.value) },
        metrics.value.length
          ? metrics.value.map(({ text }) => h("option", { value: text, selected: text === current() }, text))
          : h("option", { value: "" }, loading.value ? "Loading…" : "no finished runs yet"),
      ),
    h(
      "label",
      h("input", {
        type: "checkbox",
        checked: column.isLess,
        onchange: (event) => {
          column.isLess = event.target.checked;
        },
      }),
      "lower is better",
    ),
    button(null, remove, { kind: "quiet", iconName: "trash", label: "Remove metric" }),
  );
}

async function store(name, { label, text, columns, after }) {
  const value = {
    name: label,
    description: text || null,
    columns: columns.map((column) => ({
      evaluation_object_ref: column.evaluation,
      scorer_name: column.scorer,
      summary_metric_path: column.path,
      should_minimize: column.isLess,
    })),
  };
  await storeObject(name, value, { builtin_object_class: "Leaderboard", after });
  return name;
}
