// What the server was set to: storage, and every setting that is not the default.
import { get, resource } from "../lib/data.js";
import { h } from "../lib/dom.js";
import { ago, bytes, int } from "../lib/format.js";
import { card, codeBlock, empty, facts, tile } from "../lib/panels.js";
import { loaded } from "../lib/parts.js";
import { config, runsServer, siteLink } from "../lib/router.js";
import { listing, shares } from "./settings_parts.js";

const PARTS = {
  database: ["Database", "calls, objects, datasets, feedback"],
  write_ahead_log: ["Write-ahead log", "the newest writes, before they are merged"],
  files: ["Files", "images, code and large payloads"], adapters: ["Adapters", "versions of trained policies"],
  training: ["Training", "checkpoints of jobs"],
};
const about = () => resource(() => "/_ui/api/settings", (path, abort) => get(path, abort));

/** The tab of what the data folder holds. */
export function Storage() {
  if (!runsServer()) {
    return empty({ title: "Storage is for admins", text: "It covers the whole server. What a project stores is on its own tab." });
  }
  const state = resource(() => "/_ui/api/storage", (path, abort) => get(path, abort));
  return loaded(state, ({ folder, schema, limit, parts, disk, disk_free: free, backup }) => {
    const sum = parts.reduce((all, part) => all + part.bytes, 0);
    return [
      h("div.tiles", tile("Stored", bytes(sum), "in the data folder"), tile("Free", bytes(free), `of ${bytes(disk)} on its disk`),
        tile("Database limit", limit ? bytes(limit) : "none", "setting max_database_bytes"),
        tile("Schema", String(schema), "database version")),
      h("div.columns",
        card("Data folder", null, h("p.mono.folder", { title: folder }, folder),
          shares("Data folder", parts.map((part) => ({ ...part, name: PARTS[part.name][0], note: PARTS[part.name][1] })))),
        card("Backup", null, ...lastBackup(backup),
          h("p.dim", "A consistent copy, made and verified while the server runs. Daily, on this machine:"),
          codeBlock(`heddle backup 'backups/{time}' --every 1d --keep 7 --data ${quoted(folder)}`),
          h("p.dim", "Restore it into an empty folder:"), codeBlock("heddle restore backups/TIME --data ./restored"))),
    ];
  });
}

function lastBackup({ made_at: made, restored_at: restored, failed_at: failed, error, target, bytes: size, seconds, notes }) {
  if (!made && !failed) return [h("p.problem", { role: "status" }, "No backups yet.")];
  return [
    failed && h("p.problem", { role: "alert" }, `The last attempt failed ${ago(failed)}: ${error}`),
    made && facts([["Last backup", h("time", { datetime: made, title: made }, ago(made))], ["Where", h("span.mono", { title: target }, target)],
      ["Size", `${bytes(size)} in ${Math.ceil(seconds)} s`], ["Restored and checked", restored ? ago(restored) : "never"]]),
    ...notes.map((note) => h("p.problem", note)),
  ].filter(Boolean);
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
        told.given.length ? given(told) : h("p.dim", "None: every setting has its default.")),
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
