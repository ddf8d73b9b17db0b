// Every project of this server, and how a first one comes into being.
import { computed, h, onCleanup, signal, untrack } from "../lib/dom.js";
import { get, resource, send } from "../lib/data.js";
import { ago, exact, int, money, percent, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, cutNote, header, icon, loaded, searchBox, title } from "../lib/parts.js";
import { rejections } from "../lib/rejections.js";
import { config, go, link, query, setQuery, siteLink } from "../lib/router.js";
import { table } from "../lib/table.js";

const ADDRESS = "/_ui/api/projects";
const MOST = 200;
const OFTEN = 2000;
const SELDOM = 15_000;

/** The list of projects. */
export default function Projects() {
  title("Projects");
  const state = resource(() => ADDRESS, get);
  watch(state);
  const all = () => state.data.value?.projects ?? [];
  const isEmpty = computed(() => state.data.value && !state.data.value.projects.length);
  return h(
    "div.page",
    header({
      title: "Projects",
      extra: () => (all().length ? h("span.count", int(all().length)) : null),
      actions: actions(state),
    }),
    () => rejections(state.data.value?.rejected ?? []),
    // What is made once stays while the list is asked for again and again.
    loaded({ ...state, data: isEmpty }, (nothing) =>
      nothing ? h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Content" }, first(state.reload)) : list(all),
    ),
  );
}

function actions(state) {
  return [
    h("a.button", { href: siteLink("/docs") }, icon("code"), "API"),
    button("New project", () => create(state), { kind: "primary", iconName: "add", needs: "write" }),
  ];
}

function first(reload) {
  return empty({
    title: "Trace your first call",
    text: "Run these lines in a shell. The project is created by its first call and appears here at once.",
    action: [
      firstCallOf(config.user && config.user !== "local" ? `${config.user}/first` : "me/first", reload),
      h("p", "Agents, evaluations and training use the same address: ", h("a", { href: siteLink("/docs") }, "the API"), "."),
    ],
  });
}

/** Ask again now and then: often until a first call is there. */
function watch(state) {
  let asked = Date.now();
  const timer = setInterval(() => {
    const wait = state.data.peek()?.projects.some(({ calls }) => calls > 0) ? SELDOM : OFTEN;
    if (document.hidden || state.error.peek() || Date.now() - asked < wait) return;
    asked = Date.now();
    state.reload();
  }, 500);
  onCleanup(() => clearInterval(timer));
}

const ORDERS = {
  id: (row) => row.id.toLowerCase(),
  calls: (row) => row.calls,
  last: (row) => row.last_activity ?? "",
  errors: (row) => row.error_share ?? -1,
  cost: (row) => row.cost ?? -1,
};

function list(all) {
  const order = () => ({ key: query("sort") ?? "last", descending: (query("up") ?? "") === "" });
  const matching = computed(() => {
    const words = (query("q") ?? "").toLowerCase().split(/\s+/);
    const { key, descending } = order();
    const value = ORDERS[key] ?? ORDERS.last;
    const compare = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (descending ? -1 : 1);
    return all()
      .filter(({ id }) => words.every((word) => id.toLowerCase().includes(word)))
      .sort(compare);
  });
  const sort = (key) => setQuery({ sort: key, up: order().key === key && order().descending ? "1" : null });
  return [
    h(
      "div.bar-of-tools",
      searchBox(
        "Search projects",
        () => query("q") ?? "",
        (text) => setQuery({ q: text }),
      ),
      () => (matching.value.length > MOST ? cutNote(MOST, matching.value.length) : null),
    ),
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Projects" },
      table({
        label: "Projects",
        columns: () => COLUMNS,
        rows: () => matching.value.slice(0, MOST),
        key: (row) => row.id,
        href: (row) => link("", {}, row.id),
        order,
        onsort: sort,
      }),
      () => (matching.value.length ? null : empty({ title: "No project with this name" })),
    ),
  ];
}

const COLUMNS = [
  { key: "id", label: "Project", sort: true, class: "projectname", render: name },
  { key: "calls", label: "Calls", sort: true, number: true, render: (row) => int(row.calls) },
  {
    key: "errors",
    label: "Errors, 30 days",
    sort: true,
    number: true,
    title: "Share of the calls that failed in the last 30 days",
    render: errors,
  },
  {
    key: "cost",
    label: "Cost, 30 days",
    sort: true,
    number: true,
    title: "At today's prices; models without a price are not included",
    render: (row) => money(row.cost),
  },
  {
    key: "last",
    label: "Last call",
    sort: true,
    number: true,
    render: (row) => h("span", { title: exact(row.last_activity) }, ago(row.last_activity) || h("span.faint", "none yet")),
  },
];

function name(row) {
  const [entity, project] = row.id.split("/");
  return h(
    "a",
    { href: link("", {}, row.id), title: row.id },
    h("span.entity", { dir: "auto" }, entity, " / "),
    h("bdi", project),
  );
}

function errors(row) {
  if (row.error_share === null) return "";
  return row.errors
    ? h("span.worse", { title: `${int(row.errors)} of ${plural(row.lately, "call")}` }, percent(row.error_share))
    : h("span.dim", "0 %");
}

async function create(state) {
  const { form } = await import("../lib/dialog.js");
  const owner = config.user ?? "local";
  const made = await form(
    "New project",
    [
      {
        name: "id",
        label: "Name",
        required: true,
        placeholder: `${owner}/experiments`,
        autocomplete: "off",
        pattern: "[^\\/:]+(\\/[^\\/:]+)?",
        hint: `entity/project, or a project of ${owner}.`,
      },
    ],
    {
      action: "Create",
      text: "A project is also created by the first call that names it.",
      submit: async ({ id }) => send("POST", ADDRESS, { id: id.includes("/") ? id.trim() : `${owner}/${id.trim()}` }),
    },
  );
  if (!made) return;
  state.reload();
  go(link("", {}, made.id));
}

/** The lines for a first call; their module is loaded where they are needed. */
function firstCallOf(project, reload) {
  const shown = signal(/** @type {any} */ (null));
  import("../lib/firstcall.js").then((module) => {
    shown.value = () => module.firstCall(project, reload);
  });
  return () => (shown.value ? untrack(shown.value) : null);
}
