// Providers of models: those of the settings, those that were entered here with their keys, and those of a project.
import { get, post, resource, send } from "../lib/data.js";
import { attempt, confirm, form, menu, toast } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { ago } from "../lib/format.js";
import { card, empty, refLink } from "../lib/panels.js";
import { button, loaded } from "../lib/parts.js";
import { params, path, projectId, runsServer } from "../lib/router.js";
import { listing } from "./settings_parts.js";

/** Servers that speak OpenAI's protocol, offered while an address is typed: [name, address]. */
const KNOWN = [["openai", "https://api.openai.com/v1"], ["anthropic", "https://api.anthropic.com/v1"],
  ["gemini", "https://generativelanguage.googleapis.com/v1beta/openai"], ["mistral", "https://api.mistral.ai/v1"],
  ["groq", "https://api.groq.com/openai/v1"], ["openrouter", "https://openrouter.ai/api/v1"],
  ["together", "https://api.together.xyz/v1"], ["vllm", "http://127.0.0.1:8000/v1"]];

/** The tab of servers whose models this one may ask; with a project, those that it stores, too. */
export function Providers(inProject) {
  const state = resource(() => "/inference/providers", (address, abort) => get(address, abort));
  const tried = signal(/** @type {Record<string, any>} */ ({}));
  const add = () => edit(null, state.reload);
  return [loaded(state, ({ providers }) => (providers.length
    ? card("Providers of this server", runsServer() && button("Add provider", add, { iconName: "add" }),
      listing("Providers of this server", () => providers, (row) => row.name, columns(providers, tried, state.reload)))
    : empty({ title: "No other providers", text: "The playground, scorers, monitors and replays use the model served here. "
      + "Add a provider and its key to use its models as well.",
    action: runsServer() ? button("Add provider", add, { kind: "primary", iconName: "add" }) : null }))),
  inProject ? ofProject() : null];
}

function columns(providers, tried, reload) {
  const isOperator = providers.some((row) => row.base_url);
  return [
    { key: "name", label: "Name", render: (row) => h("b", row.name) },
    ...(isOperator ? [
      { key: "address", label: "Address", render: (row) => h("span.mono", { title: row.base_url }, row.base_url) },
      { key: "key", label: "Key", render: keyOf },
    ] : []),
    { key: "models", label: "Its models are called", render: (row) => h("code.dim", `${row.name}/MODEL`) },
    ...(isOperator ? [{ key: "test", label: "Test", render: (row) => test(row, tried) },
      { key: "change", label: "Change", render: (row) => actions(row, reload) }] : []),
  ];
}

function keyOf(row) {
  if (row.problem) return h("span.badge.warn", { title: row.problem }, "cannot be read");
  if (row.key_variable) return [h("code", row.key_variable), " ",
    h("span.badge", { class: row.has_key ? "good" : "warn" }, row.has_key ? "set" : "not set")];
  if (!row.has_key) return h("span.dim", "none");
  const who = row.updated_at ? `entered by ${row.updated_by} ${ago(row.updated_at)}` : "";
  return h("span.mono", { title: who }, `••••${row.key_hint ?? ""}`);
}

function test(row, tried) {
  const set = (told) => { tried.value = { ...tried.peek(), [row.name]: told }; };
  const run = async () => {
    set({ busy: true });
    const told = await attempt(() => post(`/inference/providers/${encodeURIComponent(row.name)}/test`, {}));
    set(told ?? null);
    if (told && !told.ok) toast(`${row.name}: ${told.message}`, { kind: "error" });
  };
  return [button("Test", run, { "aria-label": `Test ${row.name}` }), " ", () => {
    const told = tried.value[row.name];
    if (!told) return null;
    if (told.busy) return h("span.dim", { role: "status" }, "asking …");
    return h("span.badge", { role: "status", class: told.ok ? "good" : "error", title: told.message }, told.ok ? told.message : "failed");
  }];
}

function actions(row, reload) {
  if (!row.is_stored) return h("span.dim", "in the settings");
  const remove = async () => {
    if (!(await confirm(`Delete ${row.name}?`, "Its key is deleted at once, and the playground and scorers can no longer use it."))) return;
    await attempt(() => send("DELETE", path`/inference/providers/${row.name}`), "Provider deleted");
    reload();
  };
  return menu(null, () => [["Edit", () => edit(row, reload), { iconName: "edit" }],
    ["Delete", remove, { iconName: "trash", danger: true }]], { label: `More for ${row.name}`, kind: "quiet" });
}

async function edit(row, reload) {
  document.getElementById("known-providers")?.remove();
  document.body.append(h("datalist", { id: "known-providers" }, KNOWN.map(([name, address]) => h("option", { value: address }, name))));
  const fields = [
    ...(row ? [] : [{ name: "name", label: "Name", required: true, maxlength: 64, pattern: "[A-Za-z0-9][A-Za-z0-9_.\\-]*", autocomplete: "off",
      hint: "Its models are called NAME/MODEL" }]),
    { name: "base_url", label: "Address", required: true, value: row?.base_url ?? "", list: "known-providers", autocomplete: "off",
      placeholder: "https://api.openai.com/v1", hint: "Of an OpenAI-compatible server" },
    { name: "api_key", label: "Key", type: "password", autocomplete: "off",
      hint: row ? "Leave empty to keep the key, if the address stays the same" : "Stored encrypted and never shown again; leave empty for none" },
  ];
  const saved = await form(row ? `Edit ${row.name}` : "Add provider", fields, {
    submit: ({ name = row?.name, base_url: address, api_key: key }) => send("PUT", path`/inference/providers/${name.trim()}`,
      { base_url: address.trim(), api_key: row && !key ? null : key.trim() }),
  });
  if (!saved) return;
  toast("Provider saved");
  reload();
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
