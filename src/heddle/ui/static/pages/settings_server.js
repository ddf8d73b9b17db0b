// What the server was set to: providers of models, storage, and every setting that is not the default.
import { get, post, resource } from "../lib/data.js";
import { h } from "../lib/dom.js";
import { bytes, int } from "../lib/format.js";
import { card, codeBlock, empty, facts, refLink, tile } from "../lib/panels.js";
import { loaded } from "../lib/parts.js";
import { config, params, projectId, siteLink } from "../lib/router.js";
import { listing, shares } from "./settings_parts.js";

const PARTS = {
  database: ["Database", "calls, objects, datasets, feedback"],
  write_ahead_log: ["Write-ahead log", "the newest writes, before they are merged"],
  files: ["Files", "images, code and large payloads"], adapters: ["Adapters", "versions of trained policies"],
  training: ["Training", "checkpoints of jobs"],
};
const PROVIDERS_LINE = "heddle serve --providers 'openai=https://api.openai.com/v1,OPENAI_API_KEY'";
const about = () => resource(() => "/_ui/api/settings", (path, abort) => get(path, abort));

/** The tab of servers whose models this one may ask; with a project, those that it stores, too. */
export function Providers(inProject) {
  const state = about();
  return [loaded(state, ({ providers, is_operator: isOperator }) => (providers.length
    ? card("Providers of this server", null,
      listing("Providers of this server", () => providers, (row) => row.name, providerColumns(isOperator)))
    : empty({
      title: "No other provider", code: PROVIDERS_LINE,
      text: "The playground, scorers and replays use the model that is served here. To let them ask others as well, start the "
        + "server with their addresses, and with each one's key in a variable:",
    }))), inProject ? ofProject() : null];
}

const providerColumns = (isOperator) => [
  { key: "name", label: "Name", render: (row) => h("b", row.name) },
  ...(isOperator ? [
    { key: "address", label: "Address", render: (row) => h("span.mono", { title: row.address }, row.address) },
    { key: "key", label: "Key", render: keyOf },
  ] : []),
  { key: "models", label: "Its models are called", render: (row) => h("code.dim", `${row.name}/MODEL`) },
];

function keyOf({ key_variable: variable, has_key: isSet }) {
  if (!variable) return h("span.dim", "none");
  return [h("code", variable), " ", h("span.badge", { class: isSet ? "good" : "warn" }, isSet ? "set" : "not set")];
}

function ofProject() {
  const state = resource(() => projectId(), async (project, abort) => {
    const [stored, runtimes] = await Promise.all([
      post("/objs/query", { project_id: project, filter: { base_object_classes: ["Provider"], latest_only: true } }, abort),
      get(`/v2/${params.value.entity}/${params.value.project}/runtimes`, abort),
    ]);
    return [
      ...stored.objs.map((found) => ({
        name: found.object_id, kind: "provider", address: found.val?.base_url ?? "",
        ref: `weave:///${project}/object/${found.object_id}:${found.digest}`,
      })),
      ...(runtimes.runtimes ?? []).map((found) => ({ name: found.name, kind: "runtime", address: found.base_url, ref: null })),
    ];
  });
  const label = "Providers and runtimes of this project";
  return loaded(state, (rows) => (rows.length ? card("Stored in this project", null, listing(label, () => rows, keyOfRow, [
    { key: "name", label: "Name", render: (row) => (row.ref ? refLink(row.ref, row.name) : h("b", row.name)) },
    { key: "kind", label: "Kind", render: (row) => h("span.badge", row.kind) },
    { key: "address", label: "Address", render: (row) => h("span.mono", { title: row.address }, row.address) },
  ]), h("p.dim", "They are used where their address is one of this server's.")) : null));
}

const keyOfRow = (row) => `${row.kind} ${row.name}`;

/** The tab of what the data folder holds. */
export function Storage() {
  if (!config.admin) {
    return empty({ title: "Storage is for admins", text: "It is the whole server's. What a project stores is on its own tab." });
  }
  const state = resource(() => "/_ui/api/storage", (path, abort) => get(path, abort));
  return loaded(state, ({ folder, schema, limit, parts, disk, disk_free: free }) => {
    const sum = parts.reduce((all, part) => all + part.bytes, 0);
    return [
      h("div.tiles", tile("Stored", bytes(sum), "in the data folder"), tile("Free", bytes(free), `of ${bytes(disk)} on its disk`),
        tile("Limit of the database", limit ? bytes(limit) : "none", "setting max_database_bytes"),
        tile("Schema", String(schema), "step of the database")),
      h("div.columns",
        card("Data folder", null, h("p.mono.folder", { title: folder }, folder),
          shares("Data folder", parts.map((part) => ({ ...part, name: PARTS[part.name][0], note: PARTS[part.name][1] })))),
        card("Backup", null, h("p.dim", "A consistent copy of all of it, made while the server runs; run it on this machine:"),
          codeBlock(`heddle backup backups/${new Date().toISOString().slice(0, 10)}.tgz --data ${quoted(folder)}`),
          h("p.dim", "And back, into an empty folder:"), codeBlock("heddle restore backups/DAY.tgz --data ./restored"))),
    ];
  });
}

const quoted = (text) => (/^[\w./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

/** The tab of the server itself. */
export function Server() {
  const state = about();
  const limits = resource(() => "/server_info", (path, abort) => get(path, abort));
  return [
    loaded(state, (told) => [
      card("This server", [
        h("a.ref", { href: siteLink("/docs") }, "API reference"), h("a.ref", { href: siteLink("/metrics") }, "Metrics")],
        facts([["Version", told.version], ["Address", location.origin + config.root], ["Schema", told.schema],
          ["Keys", told.needs_key ? "needed" : "not needed"], ["You are", config.user],
          ["Scope", config.admin ? "admin" : "not admin"]])),
      card("Settings that differ from the defaults", h("span", `${told.given.length}`),
        told.given.length ? given(told) : h("p.dim", "None: everything is as it comes.")),
    ]),
    loaded(limits, (info) => card("Limits", null, facts(Object.entries(info.limits).map(limitFact)))),
  ];
}

function limitFact([name, value]) {
  const text = name.endsWith("timeout") ? `${value} s` : name.endsWith("rows") ? int(value) : bytes(value);
  return [name.replaceAll("_", " "), value === 0 ? "none" : text];
}

function given(told) {
  const mono = (key) => (row) => h("span.mono", { title: row[key], class: key === "default" ? "dim" : "" }, row[key]);
  const source = { key: "source", label: "Comes from", render: (row) => h("span.dim", { title: row.source }, row.source) };
  return listing("Settings that differ from the defaults", () => told.given, (row) => row.name, [
    { key: "name", label: "Setting", class: "wrap", render: (row) => [h("code", row.name), h("small", row.sentence)] },
    { key: "value", label: "Value", render: mono("value") },
    { key: "default", label: "Default", render: mono("default") },
    ...(told.is_operator ? [source] : []),
  ]);
}
