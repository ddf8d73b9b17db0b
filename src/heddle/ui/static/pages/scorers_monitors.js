// Monitors: rules that score new calls as they end. They are objects like any other; changing one stores a version.
import { computed, h, untrack } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { attempt, confirm, dialog, menu, toast } from "../lib/dialog.js";
import { int, listOf, nameOf, percent } from "../lib/format.js";
import { empty, field, refLink } from "../lib/panels.js";
import { button, dot, loaded } from "../lib/parts.js";
import { link, path, projectId } from "../lib/router.js";
import { refOf } from "../lib/runs.js";
import { kindOfScorer, objectName, publish, runsHere } from "../lib/scorerkinds.js";
import { table } from "../lib/table.js";

const BASES = ["Object", "BaseModel"];

/** The list of monitors; `scorers()` are the newest versions of those of the project. */
export function monitors(scorers) {
  const state = resource(() => ({ project: projectId() }), load);
  const create = () => edit(null, scorers(), state.reload);
  return loaded(state, () =>
    untrack(() =>
      list(
        computed(() => state.data.value ?? []),
        create,
        state.reload,
      ),
    ),
  );
}

async function load(_, abort) {
  const [states, objects] = await Promise.all([
    postProject("/monitors/query", {}, abort),
    postProject("/objs/query", { filter: { base_object_classes: ["Monitor"], latest_only: true } }, abort),
  ]);
  const values = new Map(objects.objs.map((object) => [object.object_id, object]));
  return states.monitors.map((monitor) => ({
    ...monitor,
    object: values.get(monitor.name),
    value: values.get(monitor.name)?.val ?? {},
  }));
}

function list(rows, create, reload) {
  return [
    h(
      "div.bar-of-tools",
      h("span.dim", "A monitor scores new calls as they finish, with built-in scorers and judges."),
      h("span.grow"),
      button("New monitor", create, { iconName: "add", needs: "write" }),
    ),
    () =>
      rows.value.length
        ? h(
            "div.tablebox",
            { tabindex: 0, role: "region", "aria-label": "Monitors" },
            table({
              label: "Monitors",
              columns: () => columns(reload),
              rows: () => rows.value,
              key: (row) => row.name,
              href: (row) => row.object && link(path`/objects/${row.name}/versions/${row.object.digest}`),
            }),
          )
        : h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Monitors" }, empty(teaching(create))),
  ];
}

function columns(reload) {
  const ops = (row) => listOf(row.value.op_names).map(nameOf).join(", ") || "every op";
  return [
    {
      key: "state",
      label: h("span.hidden-text", "State"),
      width: "34px",
      render: (row) => dot(row.problem ? "error" : row.active ? "success" : "waiting"),
    },
    {
      key: "name",
      label: "Name",
      render: (row) =>
        h(
          "a",
          {
            href: row.object ? link(path`/objects/${row.name}/versions/${row.object.digest}`) : null,
            title: row.value.description || row.name,
            dir: "auto",
          },
          row.name,
        ),
    },
    {
      key: "active",
      label: "State",
      render: (row) =>
        row.problem
          ? h("span.worse", { title: row.problem }, row.problem)
          : row.active
            ? "scores new calls"
            : h("span.dim", "paused"),
    },
    { key: "ops", label: "Calls of", render: (row) => h("span", { title: ops(row) }, ops(row)) },
    {
      key: "rate",
      label: "Share",
      number: true,
      title: "Share of these calls that is scored",
      render: (row) => percent(row.value.sampling_rate ?? 1, 0),
    },
    {
      key: "scorers",
      label: "Scorers",
      render: (row) =>
        h(
          "span.names",
          listOf(row.value.scorers).map((ref) => refLink(ref, nameOf(ref))),
        ),
    },
    {
      key: "submitted",
      label: "Scored",
      number: true,
      title: "Calls sent to its scorers since the server started",
      render: (row) => int(row.submitted),
    },
    { key: "actions", label: h("span.hidden-text", "Actions"), number: true, render: (row) => actions(row, reload) },
  ];
}

function actions(row, reload) {
  const set = async (active) => {
    await attempt(() => republish(row, { active }), active ? "The monitor scores new calls" : "The monitor is paused");
    reload();
  };
  const remove = async () => {
    if (!(await confirm("Delete this monitor?", "It stops at once. Existing scores are kept."))) return;
    await attempt(() => postProject("/obj/delete", { object_id: row.name }), "Monitor deleted");
    reload();
  };
  return h(
    "span.names",
    { style: { overflow: "visible" } },
    row.active
      ? button("Pause", () => set(false), { iconName: "stop", needs: "write" })
      : button("Resume", () => set(true), { iconName: "play", needs: "write" }),
    menu(null, [["Delete", remove, { iconName: "trash", danger: true, needs: "delete" }]], { label: `More for ${row.name}`, kind: "quiet" }),
  );
}

/** Store the monitor again with some fields changed, unless somebody else has changed or deleted it since. */
function republish(row, changes) {
  const { _type, _class_name, _bases, name, ...fields } = row.value;
  return publish(row.name, "Monitor", _bases ?? BASES, { ...fields, ...changes }, row.object?.digest);
}

/** Ask for a monitor that begins with a name, ops and a query which its calls fit. */
export async function newMonitor(initial) {
  const found = await attempt(() =>
    postProject("/objs/query", { filter: { base_object_classes: ["Scorer"], latest_only: true } }),
  );
  if (found) await edit(initial, found.objs, () => toast("The monitor scores new calls"));
}

async function edit(initial, scorers, onmade) {
  const usable = scorers.filter(runsHere);
  const made = await dialog("New monitor", (close) => {
    const problem = h("p.problem", { role: "alert" });
    const name = h("input", { type: "text", required: true, autocomplete: "off", placeholder: "valid-answers", value: initial?.name ?? "" });
    const ops = h("input", { type: "text", autocomplete: "off", placeholder: "every op", value: initial?.ops ?? "" });
    const share = h("input", { type: "number", min: 0, max: 100, step: "any", value: 100, required: true });
    const boxes = usable.map((object) => h("input", { type: "checkbox", value: refOf(object) }));
    const submit = async (event) => {
      event.preventDefault();
      const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
      const names = ops.value
        .split(",")
        .map((text) => text.trim())
        .filter(Boolean);
      try {
        if (!chosen.length) throw new Error("Choose at least one scorer");
        close(
          await publish(objectName(name.value), "Monitor", BASES, {
            description: null,
            sampling_rate: Number(share.value) / 100,
            scorers: chosen,
            op_names: names.length ? names : null,
            query: initial?.query ?? null,
            active: true,
            is_traced: true,
            scorer_debounce_config: null,
          }, ""),
        );
      } catch (error) {
        problem.textContent = error.message;
      }
    };
    return h(
      "form",
      { onsubmit: submit },
      field("Name", name),
      field("Ops", ops, "Comma-separated names; leave empty for every op."),
      initial?.query ? h("p.dim", "Only calls that match the filter; for failed calls the exception is scored.") : null,
      field("Share of calls, in percent", share, "A call is always sampled the same way."),
      h(
        "fieldset",
        h("legend", h("b", "Scorers")),
        usable.length
          ? h(
              "div.checks",
              { tabindex: 0, role: "group", "aria-label": "Scorers" },
              usable.map((object, index) =>
                h("label", boxes[index], h("span", object.object_id, " ", h("small", kindOfScorer(object)))),
              ),
            )
          : h("p.dim", "No scorer runs on the server yet. Create a built-in one or a judge first."),
      ),
      problem,
      h(
        "div.actions",
        button("Cancel", () => close()),
        h("button.button.primary", { type: "submit" }, "Switch on"),
      ),
    );
  });
  if (made) onmade();
}

const teaching = (create) => ({
  title: "Score production traffic as it arrives",
  text: "A monitor scores a share of the finished calls. Scores are stored as feedback, so that alerts and charts can use them. From a program:",
  code: [
    "import weave",
    `weave.init("${projectId()}")  # WANDB_BASE_URL=${location.origin}`,
    'monitor = weave.Monitor(name="valid", op_names=["OP"], sampling_rate=0.2, scorers=[weave.ref("SCORER").get()])',
    "monitor.activate()",
  ].join("\n"),
  action: button("New monitor", create, { kind: "primary", iconName: "add", needs: "write" }),
});
