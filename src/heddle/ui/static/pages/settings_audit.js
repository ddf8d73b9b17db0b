// The audit log: who did what, where from and when, in what the caller administers.
import { get, resource } from "../lib/data.js";
import { h } from "../lib/dom.js";
import { ago, exact } from "../lib/format.js";
import { card, empty } from "../lib/panels.js";
import { button, loaded } from "../lib/parts.js";
import { config, may, projectId, query, setQuery } from "../lib/router.js";
import { listing } from "./settings_parts.js";

const ACTIONS = {
  "": "Everything", login: "Logins", "login.failed": "Failed logins", key: "Keys", person: "People", limit: "Limits", calls: "Calls",
  object: "Objects", adapter: "Adapters", checkpoint: "Checkpoints", retention: "Retention", provider: "Providers",
};

/** The tab: rows of the audit log, newest first, and their export. */
export function Audit() {
  if (!may("admin")) return empty({ title: "The audit log is for admins", text: `You are ${config.user} and do not administer anything here.` });
  const asked = () => {
    const search = new URLSearchParams();
    for (const name of ["action", "user", "before"]) if (query(name)) search.set(name, query(name));
    if (projectId()) search.set("project", projectId());
    return search;
  };
  const state = resource(() => `/audit_log?${asked()}`, (path, abort) => get(path, abort));
  const file = () => {
    const search = asked();
    search.delete("before");
    return `${config.root}/audit_log/export?${search}`;
  };
  const actions = [select(), userField(),
    h("a.button", { href: file, download: "audit_log.jsonl" }, "Export")];
  return loaded(state, ({ rows, before }) => card("Audit log", actions,
    rows.length ? listing("Audit log", () => rows, (row) => row.number, columns)
      : h("p.dim", "No matching entries."),
    h("div.row", query("before") && button("Newest", () => setQuery({ before: "" }), { kind: "quiet" }),
      before && button("Older", () => setQuery({ before: String(before) }), { kind: "quiet" }))));
}

const select = () => h("select", { "aria-label": "Actions", onchange: (event) => setQuery({ action: event.target.value, before: "" }) },
  Object.entries(ACTIONS).map(([value, text]) => h("option", { value, selected: value === (query("action") ?? "") }, text)));

const userField = () => h("input", {
  type: "search", "aria-label": "User", placeholder: "User", value: query("user") ?? "",
  onchange: (event) => setQuery({ user: event.target.value.trim(), before: "" }),
});

const columns = [
  { key: "at", label: "When", render: (row) => h("time", { datetime: row.at, title: exact(row.at) }, ago(row.at)) },
  { key: "user", label: "Who", render: (row) => h("b", { title: row.user, dir: "auto" }, row.user || "unknown user") },
  { key: "address", label: "From", render: (row) => h("span.dim", row.address) },
  { key: "action", label: "What", render: (row) => h("code", row.action) },
  { key: "project", label: "Project", render: (row) => row.project && h("span", { title: row.project }, row.project) },
  { key: "details", label: "Details", class: "wrap", render: (row) => h("small", details(row.details)) },
];

const details = (told) => Object.entries(told).map(([name, value]) => `${name}: ${shown(value)}`).join(" · ");
const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));
