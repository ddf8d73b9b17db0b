// Who may do what: the keys of the server and the people who sign in, made, rotated and revoked here.
import { get, resource, send } from "../lib/data.js";
import { attempt, confirm, dialog, form, menu, toast } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { ago, day, exact } from "../lib/format.js";
import { card, codeBlock, empty } from "../lib/panels.js";
import { button, loaded, segments } from "../lib/parts.js";
import { config, projectId, query, runsServer, setQuery } from "../lib/router.js";
import { changeLimits, limitsOf } from "./settings_limits.js";
import { listing } from "./settings_parts.js";

const ROLES = { viewer: "viewer", annotator: "annotator", editor: "editor", admin: "admin" };
const SCOPES = {
  read: "Reads", annotate: "Gives feedback", write: "Writes, runs models and jobs", delete: "Deletes", admin: "Keys, purges, retention",
};
const LIVES = { "": "Never", "7d": "In 7 days", "30d": "In 30 days", "90d": "In 90 days", "365d": "In a year" };
const OVERLAPS = { "0s": "No longer", "1h": "For an hour", "24h": "For a day", "7d": "For a week" };

/** The tab: who may do what, and the ways to change it. */
export function Keys() {
  if (!config.admin) {
    const text = `You are ${config.user} and do not administer anything here. Ask an admin of this server for an admin key, or for the `
      + "key you need.";
    return empty({ title: "Keys are for admins", text });
  }
  const state = resource(() => "/_ui/api/keys", (path, abort) => get(path, abort));
  return [noKeysNeeded(), loaded(state, ({ keys, roles }) => [
    keys.length ? list(keys.filter((row) => !row.is_person), state.reload) : noKeys(state.reload),
    people(keys.filter((row) => row.is_person), state.reload), meaning(roles),
  ])];
}

function noKeysNeeded() {
  const text = "No key is needed now, as only this machine can reach the server. Keys apply once it runs with ";
  const how = " or on another address. Until then, create them with ";
  return config.needs_key ? null : h("p.note", text, h("code", "--auth on"), how, h("code", "heddle keys create"), ".");
}

function noKeys(reload) {
  return empty({
    title: "No keys yet",
    text: "A key gives an SDK or a colleague a role in the projects you choose. Create one on the server's machine:",
    code: "heddle keys create --user ann", action: create(reload),
  });
}

const create = (reload) => config.needs_key
  ? button("Create key", () => make(reload), { kind: "primary", iconName: "add" }) : null;

function list(keys, reload) {
  const all = () => query("revoked") === "1";
  const rows = () => keys.filter((key) => all() || !key.problem);
  const ended = keys.filter((key) => key.problem).length;
  const choices = [["", "Usable"], ["1", `Including ${ended} ended`]];
  const which = segments("Which keys", choices, () => query("revoked") ?? "", (value) => setQuery({ revoked: value }));
  return card("API keys", [ended ? which : null, create(reload)], listing("API keys", rows, (row) => row.id, [
    ...columns, { key: "ends", label: "Ends", render: (row) => ends(row) },
    { key: "id", label: "Id", render: (row) => h("code.dim", { title: row.id }, row.id.slice(0, 13)) },
    { key: "state", label: "Change", render: (row) => keyActions(row, reload) },
  ]));
}

function people(rows, reload) {
  if (!rows.length) return null;
  return card("People who sign in", null, listing("People who sign in", () => rows, (row) => row.id, [
    ...columns, { key: "state", label: "Change", render: (row) => personActions(row, reload) },
  ]));
}

const columns = [
  { key: "user", label: "User", render: (row) => h("b", { title: row.user, dir: "auto" }, row.user) },
  { key: "roles", label: "May", class: "wrap", render: (row) => row.roles.map(roleBadge) },
  { key: "used", label: "Last used", render: (row) => dated(row.last_used_at, ago(row.last_used_at) || "never") },
  { key: "from", label: "From", render: (row) => h("span.dim", { title: row.last_used_from }, row.last_used_from || "") },
  { key: "made", label: "Made", render: (row) => dated(row.created_at, day(row.created_at), ` by ${row.created_by}`) },
  { key: "sessions", label: "Browsers", number: true, title: "Logged-in browsers", render: (row) => row.sessions || "" },
];

function roleBadge(text) {
  const [role, place = ""] = text.split(":");
  const where = !place ? "everywhere" : place.includes("/") ? `in ${place}` : `in ${place}/*`;
  return h("span.role", h("span.badge", { class: role === "admin" ? "warn" : "" }, role), ` ${where}`);
}

const dated = (at, text, more = "") => h("span", { title: at ? exact(at) + more : "" }, text);

function ends(row) {
  if (row.revoked_at) return h("span.badge", { title: exact(row.revoked_at) }, "revoked");
  if (row.problem) return h("span.badge.warn", { title: exact(row.expires_at) }, "expired");
  const old = row.previous_until && h("small.dim", { title: exact(row.previous_until) }, "the old secret is still valid");
  return [dated(row.expires_at, row.expires_at ? day(row.expires_at) : "never"), old];
}

function keyActions(row, reload) {
  const own = row.is_own && h("span.badge.good", "yours");
  if (row.revoked_at || !row.is_whole) return own;
  return h("span.keystate", own, menu(null, [
    !row.problem && config.needs_key && ["Rotate", () => rotate(row, reload)],
    runsServer() && ["Limits", () => attempt(() => limits(row))],
    ["Revoke", () => revoke(row, reload), { danger: true }],
  ], { kind: "quiet", label: `More for the key of ${row.user}` }));
}

function personActions(row, reload) {
  if (!row.is_whole || row.is_own) return row.is_own && h("span.badge.good", "you");
  const path = `/_ui/api/keys/${encodeURIComponent(row.id)}`;
  const again = async () => {
    await attempt(() => send("POST", `${path}/restore`, {}), `${row.user} can sign in again`);
    reload();
  };
  return row.revoked_at ? button("Unblock", again, { kind: "quiet" })
    : button("Block", () => revoke(row, reload), { kind: "danger quiet" });
}

function meaning(roles) {
  const rows = Object.entries(roles).map(([role, scopes]) => ({ role, scopes }));
  return card("What each role may do", null, listing("What each role may do", () => rows, (row) => row.role, [
    { key: "role", label: "Role", render: (row) => h("b", row.role) },
    ...Object.entries(SCOPES).map(([scope, label]) => ({ key: scope, label,
      render: (row) => (row.scopes.includes(scope) ? h("span", { "aria-label": "yes" }, "✓") : h("span.dim", { "aria-label": "no" }, "–")) })),
  ]));
}

async function limits({ id, user }) {
  const shown = limitsOf(await get("/v1/limits"), "key", id);
  if (await changeLimits("key", id, shown, `this key of ${user}`)) toast("Key limits updated");
}

async function revoke(row, reload) {
  const own = row.is_own ? " This is the key that you are logged in with: you will need another." : "";
  const what = row.is_person ? `${row.user} is logged out, and cannot sign in until you unblock them.`
    : `Requests with this key of ${row.user} are refused from now on, its browsers are logged out, and jobs that it started `
      + `stop. This cannot be undone.${own}`;
  if (!await confirm(row.is_person ? "Block this user?" : "Revoke this key?", what, { action: row.is_person ? "Block" : "Revoke" })) return;
  const done = row.is_person ? `${row.user} is blocked` : `The key of ${row.user} is revoked`;
  await attempt(() => send("DELETE", `/_ui/api/keys/${encodeURIComponent(row.id)}`), done);
  reload();
}

async function rotate(row, reload) {
  const text = `The key of ${row.user} gets a new secret; its roles, limits and jobs are kept.`;
  const made = await form("Rotate this key", [
    { name: "overlap", label: "The old secret is valid", options: Object.entries(OVERLAPS), value: "24h" },
  ], { action: "Rotate", text, submit: (values) => send("POST", `/_ui/api/keys/${encodeURIComponent(row.id)}/rotate`, values) });
  if (!made) return;
  reload();
  await show(made);
}

async function make(reload) {
  const made = await form("Create key", [
    {
      name: "user", label: "User", hint: "Who the key is for; calls are stored under this name.", required: true, maxlength: 256,
      autocomplete: "off",
    },
    { name: "role", label: "Role", options: Object.entries(ROLES), value: "editor" },
    {
      name: "reach", label: "Reaches", hint: "An entity, an entity/project, or empty for everything.",
      placeholder: "team/website", pattern: "[^\\s\\/:]+(\\/[^\\/:]+)?", value: projectId() || "",
    },
    {
      name: "more", label: "Further roles", type: "textarea", rows: 2, placeholder: "viewer:team/other",
      hint: "One per line: role:entity or role:entity/project.",
    },
    { name: "expires", label: "Expires", options: Object.entries(LIVES), value: "90d" },
  ], { action: "Create key", submit: (values) => send("POST", "/_ui/api/keys", asked(values)) });
  if (!made) return;
  reload();
  await show(made);
}

function asked({ user, role, reach, more, expires }) {
  const further = more.split("\n").map((line) => line.trim()).filter(Boolean);
  return { user, roles: [reach.trim() ? `${role}:${reach.trim()}` : role, ...further], expires: expires || null };
}

function show({ key, user }) {
  return dialog("Copy the key now", (close) => [
    h("p", "It is shown only once; the server keeps just a hash of it."), codeBlock(key),
    h("p", `How ${user} uses it with an SDK:`),
    codeBlock(`export WANDB_BASE_URL=${location.origin}${config.root}\nexport WANDB_API_KEY=${key}`),
    h("div.actions", button("Done", () => close(), { kind: "primary" })),
  ], { wide: true });
}
