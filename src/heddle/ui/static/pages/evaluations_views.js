// Saved views of the runs: objects of the SDK's own kind, so that its printed links open them.
import { signal } from "../lib/dom.js";
import { postProject, storeObject } from "../lib/data.js";
import { form, menu, toast } from "../lib/dialog.js";
import { chip } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";

const TYPE = "evaluations";
const listed = { filter: { base_object_classes: ["SavedView"], latest_only: true } };

/** A saved view by the name of its object, or null. */
export async function viewOf(name, abort) {
  const { objs } = await postProject("/objs/query", { filter: { object_ids: [name], latest_only: true } }, abort);
  const value = objs[0]?.val;
  return value ? { ...value, definition: plain(value.definition ?? {}) } : null;
}

/** A stored value without the class names that are stored with it, as queries are sent without them. */
function plain(value) {
  if (value === null || typeof value !== "object") return value;
  if (Array.isArray(value)) return value.map(plain);
  return Object.fromEntries(
    Object.entries(value)
      .filter(([name]) => !["_type", "_class_name", "_bases"].includes(name))
      .map(([name, item]) => [name, plain(item)]),
  );
}

/** The menu of saved views, and the one that is open. */
export function viewMenu(view, reload) {
  const views = signal([]);
  const load = async () => {
    const { objs } = await postProject("/objs/query", listed);
    views.value = objs.filter((object) => object.val?.view_type === TYPE);
  };
  load().catch(() => {});
  const open = (object) => {
    const { evaluation_selector: evaluation, sort_by: sort } = object.val.definition ?? {};
    setQuery(
      {
        view: object.object_id,
        q: null,
        status: null,
        evaluation: evaluation ?? null,
        sort: sort?.[0]?.field ?? null,
        up: sort?.[0]?.direction === "asc" ? "1" : null,
      },
      false,
    );
  };
  return [
    menu(
      "Views",
      () => [
        ...views.value.map((object) => [object.val.label || object.object_id, () => open(object), { iconName: "filter" }]),
        ["Save this view…", () => save(views, load), { iconName: "save", needs: "write" }],
      ],
      { iconName: "columns" },
    ),
    () =>
      query("view")
        ? chip(view()?.label || query("view"), () => {
            setQuery({ view: null }, false);
            reload();
          })
        : null,
  ];
}

async function save(views, load) {
  const saved = await form("Save this view", [{ name: "label", label: "Name", required: true }], {
    text: "Saves the filters and sort order of this list for everyone in the project.",
    submit: ({ label }) => store(label.trim(), views.peek()),
  });
  if (!saved) return;
  toast("View saved");
  await load();
  setQuery({ view: saved.name });
}

/** Store what the list shows as a view; only the name of the view that is open gets a new version. */
async function store(label, views) {
  const name =
    label
      .toLowerCase()
      .replace(/[^a-z0-9_-]+/g, "-")
      .replace(/^-+|-+$/g, "") || "view";
  const definition = {
    evaluation_selector: query("evaluation"),
    query: conditions(),
    sort_by: query("sort") ? [{ field: query("sort"), direction: query("up") === "1" ? "asc" : "desc" }] : null,
  };
  const value = { _type: "SavedView", view_type: TYPE, label, definition };
  const open = views.find((object) => object.object_id === name && name === query("view"));
  await storeObject(name, value, { builtin_object_class: "SavedView", after: open?.digest ?? "" });
  return { name };
}

/** The filters of the page as a query on the calls of runs. */
function conditions() {
  const [words, status] = [query("q"), query("status")];
  const parts = [
    words && { $contains: { input: { $getField: "inputs.model" }, substr: { $literal: words }, case_insensitive: true } },
    status && { $eq: [{ $getField: "summary.weave.status" }, { $literal: status }] },
  ].filter(Boolean);
  return parts.length ? { $expr: parts.length === 1 ? parts[0] : { $and: parts } } : null;
}
