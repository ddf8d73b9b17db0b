// The keys of the server: who may do what, made and revoked here.
import { get, resource, send } from "../lib/data.js";
import { attempt, confirm, dialog, form, toast } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { ago, day, when } from "../lib/format.js";
import { card, codeBlock, empty } from "../lib/panels.js";
import { button, loaded, segments } from "../lib/parts.js";
import { config, projectId, query, setQuery } from "../lib/router.js";
import { changeLimits, limitsOf } from "./settings_limits.js";
import { listing } from "./settings_parts.js";

const SCOPES = { read: "read", "read write": "read and write", write: "write only", admin: "admin (everything, keys too)" };

/** The tab: a table of keys, and the way to make one. */
export function Keys() {
  if (!config.admin) {
    const text = `You are ${config.user}, and your key does not carry the scope admin. Ask whoever runs this server for one `
      + "that does, or for the key that you need.";
    return empty({ title: "Keys are for admins", text });
  }
  const state = resource(() => "/_ui/api/keys", (path, abort) => get(path, abort));
  return [noKeysNeeded(), loaded(state, ({ keys }) => (keys.length ? list(keys, state.reload) : noKeys(state.reload)))];
}

function noKeysNeeded() {
  const text = "Nobody needs a key now, as only this machine reaches the server. Keys count once it runs with ";
  const how = " or on another address, and are made until then with ";
  return config.needs_key ? null : h("p.note", text, h("code", "--auth on"), how, h("code", "heddle keys create"), ".");
}

function noKeys(reload) {
  return empty({
    title: "No keys yet",
    text: "A key lets an SDK or a colleague in, with the scopes and the project that you give it. Make one on the server's "
      + "machine:",
    code: "heddle keys create --user ann", action: create(reload),
  });
}

const create = (reload) => config.needs_key
  ? button("Create key", () => make(reload), { kind: "primary", iconName: "add" }) : null;

function list(keys, reload) {
  const all = () => query("revoked") === "1";
  const rows = () => keys.filter((key) => all() || !key.revoked_at);
  const revoked = keys.filter((key) => key.revoked_at).length;
  const choices = [["", "Usable"], ["1", `With ${revoked} revoked`]];
  const which = segments("Which keys", choices, () => query("revoked") ?? "", (value) => setQuery({ revoked: value }));
  return card("API keys", [revoked ? which : null, create(reload)], listing("API keys", rows, (row) => row.id, columns(reload)));
}

const columns = (reload) => [
  { key: "user", label: "User", render: (row) => h("b", { title: row.user, dir: "auto" }, row.user) },
  { key: "scopes", label: "Scopes", render: (row) => row.scopes.map(scopeBadge) },
  { key: "reach", label: "Reaches", render: (row) => h("span.dim", { title: reach(row) }, reach(row)) },
  { key: "made", label: "Made", render: (row) => dated(row.created_at, day(row.created_at), ` by ${row.created_by}`) },
  { key: "used", label: "Last used", render: (row) => dated(row.last_used_at, ago(row.last_used_at) || "never") },
  { key: "state", label: "State", render: (row) => state(row, reload) },
  { key: "sessions", label: "Browsers", number: true, title: "Browsers that are logged in", render: (row) => row.sessions || "" },
  { key: "id", label: "Id", render: (row) => h("code.dim", { title: row.id }, row.id.slice(0, 13)) },
];

const scopeBadge = (scope) => h("span.badge", { class: scope === "admin" ? "warn" : "" }, scope);
const dated = (at, text, more = "") => h("span", { title: when(at) + more }, text);

function state(row, reload) {
  if (row.revoked_at) return h("span.badge", { title: when(row.revoked_at) }, "revoked");
  const end = button("Revoke", () => revoke(row, reload), { kind: "danger quiet" });
  const limit = button("Limits", () => attempt(() => limits(row)), { kind: "quiet" });
  return h("span.keystate", end, limit, row.is_own && h("span.badge.good", "yours"));
}

const reach = (row) => row.project ?? (row.entity ? `${row.entity}/*` : "everything");

async function limits({ id, user }) {
  const shown = limitsOf(await get("/v1/limits"), "key", id);
  if (await changeLimits("key", id, shown, `this key of ${user}`)) toast("The limits of the key are changed");
}

async function revoke(row, reload) {
  const own = row.is_own ? " This is the key that you are logged in with: you will need another." : "";
  const text = `Whatever uses this key of ${row.user} is refused from now on, and browsers with it are logged out. `
    + `This cannot be undone.${own}`;
  if (!await confirm("Revoke this key?", text, { action: "Revoke" })) return;
  await attempt(() => send("DELETE", `/_ui/api/keys/${encodeURIComponent(row.id)}`), `The key of ${row.user} is revoked`);
  reload();
}

async function make(reload) {
  const reachOf = projectId() ? { value: projectId() } : {};
  const made = await form("Create key", [
    {
      name: "user", label: "User", hint: "Who the key is for; calls are stored under this name.", required: true, maxlength: 256,
      autocomplete: "off",
    },
    { name: "scopes", label: "Scopes", options: Object.entries(SCOPES), value: "read write" },
    {
      name: "reach", label: "Reaches", hint: "An entity, an entity/project, or empty for everything.",
      placeholder: "team/website", pattern: "[^\\s\\/]+(\\/[^\\s\\/]+)?", ...reachOf,
    },
  ], { action: "Create key", submit: (values) => send("POST", "/_ui/api/keys", asked(values)) });
  if (!made) return;
  reload();
  await show(made);
}

function asked({ user, scopes, reach: bound }) {
  const text = bound.trim();
  const isProject = text.includes("/");
  return { user, scopes: scopes.split(" "), entity: !isProject && text ? text : null, project: isProject ? text : null };
}

function show({ key, user }) {
  return dialog("Copy the key now", (close) => [
    h("p", "It is shown this once; the server keeps only a hash of it."), codeBlock(key),
    h("p", `How ${user} uses it with an SDK:`),
    codeBlock(`export WANDB_BASE_URL=${location.origin}${config.root}\nexport WANDB_API_KEY=${key}`),
    h("div.actions", button("Done", () => close(), { kind: "primary" })),
  ], { wide: true });
}
