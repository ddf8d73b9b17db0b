// Settings of one project: how long calls are kept, what it stores, what it may use.
import { get, postProject, resource } from "../lib/data.js";
import { attempt, confirm, form, toast } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { int } from "../lib/format.js";
import { card, codeBlock, facts } from "../lib/panels.js";
import { button, loaded } from "../lib/parts.js";
import { config, may, projectId, runsServer } from "../lib/router.js";
import { changeLimits, limitsOf, quotaUses } from "./settings_limits.js";
import { shares } from "./settings_parts.js";

const KINDS = [
  ["Calls", "trace_storage_size_bytes"], ["Objects", "objects_storage_size_bytes"],
  ["Dataset tables", "tables_storage_size_bytes"], ["Files", "files_storage_size_bytes"],
];
const PERIODS = [["", "Forever"], ["7", "7 days"], ["30", "30 days"], ["90", "90 days"], ["365", "1 year"]];

/** The tab. */
export function Project() {
  return h("div.columns", retention(), stored(), redaction(), limits(), may("admin") ? erasure() : null, connect());
}

function retention() {
  const state = resource(() => "retention", () => postProject("/project/ttl_settings/read"));
  const change = async (before, days) => {
    const after = days === "" ? null : Number(days);
    const isShorter = after !== null && (before === null || after < before);
    const text = `Calls of ${projectId()} that started more than ${int(after)} days ago are permanently deleted, now and `
      + "from then on.";
    if (isShorter && !await confirm("Delete older calls?", text, { action: "Delete calls" })) return state.reload();
    await attempt(() => postProject("/project/ttl_settings/update", { retention_days: after }), "Retention updated");
    return state.reload();
  };
  return card("Retention", null, loaded(state, ({ retention_days: days }) => choose(days, change)));
}

function choose(days, change) {
  const value = days === null ? "" : String(days);
  const known = PERIODS.some(([name]) => name === value) ? PERIODS : [...PERIODS, [value, `${int(days)} days`]];
  const select = h("select", {
    disabled: !may("admin"), onchange: (event) => change(days, event.target.value),
  }, known.map(([name, text]) => h("option", { value: name, selected: name === value }, text)));
  const other = async () => {
    const period = { name: "days", label: "Days", type: "number", min: 1, max: 36500, required: true, value };
    const asked = await form("Keep calls for", [period], { action: "Keep" });
    if (asked) change(days, asked.days);
  };
  return [
    h("div.row", h("label", h("span", "Calls are kept "), select),
      may("admin") && button("Custom period", other, { kind: "quiet" })),
    h("p.dim", may("admin")
      ? "Older calls are permanently deleted. Objects and datasets are kept." : "Only admins can change this."),
  ];
}

function stored() {
  const state = resource(() => "stats", () => postProject("/project/stats"));
  return card("Stored in this project", null, loaded(state, (sizes) =>
    shares("Stored in this project", KINDS.map(([name, field]) => ({ name, bytes: sizes[field] })))));
}

function limits() {
  const state = resource(() => `/v1/limits/own?project=${encodeURIComponent(projectId())}`, (path, abort) => get(path, abort));
  const text = (value) => (value ? int(value) : "no limit");
  const change = async (shown) => {
    if (await changeLimits("project", projectId(), shown, projectId())) state.reload();
  };
  return card("Limits", null, loaded(state, (told) => {
    const shown = limitsOf(told, "project", projectId());
    const { uses } = told.data.find((entry) => entry.kind === "key");
    return [
      facts([["Concurrent completions", text(shown.concurrency)], ["Tokens per minute", text(shown.tokens_per_minute)],
        ["Quotas", shown.quotas], ["Comes from", shown.isOwn ? "this project" : "the server's settings"],
        ["Running now", int(shown.running)]]),
      quotaUses("Used by this project", shown.uses),
      uses.length > 0 && [h("p.dim", "Quotas of your key:"), quotaUses("Used by your key", uses)],
      runsServer() && h("div.row", button("Change limits", () => change(shown), { iconName: "edit" })),
    ];
  }));
}

function redaction() {
  const state = resource(() => "redaction", () => postProject("/project/redaction/read"));
  const change = async ({ kinds, paths }) => {
    const done = await form("Redact before storing", [
      { name: "kinds", label: "Kinds", value: kinds.join(", "), autocomplete: "off", hint: "Any of email, phone, card, key" },
      { name: "paths", label: "Paths", value: paths.join(", "), autocomplete: "off", hint: "For example inputs.customer.address, attributes.user.name" },
    ], {
      text: "Matches are removed from everything that is sent to this project from now on. Stored data is not changed.",
      submit: (given) => postProject("/project/redaction/update", { kinds: words(given.kinds), paths: words(given.paths) }),
    });
    if (done) state.reload();
  };
  const words = (text) => text.split(/[\s,]+/).filter(Boolean);
  const counted = (redacted) => Object.entries(redacted).map(([kind, count]) => `${int(count)} ${kind}`).join(", ");
  return card("Redaction", null, loaded(state, (rules) => [
    facts([["Kinds", rules.kinds.join(", ") || "none"], ["Paths", rules.paths.join(", ") || "none"],
      ["Comes from", rules.is_own ? "this project" : "the server's settings"], ["Removed", counted(rules.redacted) || "nothing"]]),
    h("p.dim", "Not checked: images and other binary files, names, ids and job requests. Sampled tokens of removed text are not "
      + "kept; Tinker's protocol and uploaded archives are refused."),
    may("admin") && h("div.row", button("Change redaction", () => change(rules), { iconName: "edit" })),
  ]));
}

const SUBJECTS = [["user", "A user"], ["thread", "A thread"], ["trace", "A trace"], ["call", "A call and its child calls"],
  ["object", "An object or op"], ["project", "The whole project"]];

function erasure() {
  const told = signal(/** @type {any} */ (null));
  const erase = async () => {
    const asked = await form("Erase data permanently", [
      { name: "subject", label: "What", options: SUBJECTS },
      { name: "id", label: "Id or name", autocomplete: "off", hint: `For the whole project: ${projectId()}` },
    ], { action: "Erase", text: "Calls, files, feedback and everything attached to them are removed from the disk. Only a backup can restore them." });
    if (!asked) return;
    const { subject, id } = asked;
    if (subject === "project" && id !== projectId()) return void toast("Nothing was erased: the project name does not match", { kind: "error" });
    const job = await attempt(() => postProject("/project/purge", { subject, id: subject === "project" ? "" : id }));
    if (job) follow(job.job_id);
  };
  const follow = async (id) => {
    const { jobs } = await postProject("/evaluations/jobs/query", { kinds: ["purge"] });
    told.value = jobs.find((job) => job.id === id);
    if (["queued", "running"].includes(told.peek()?.state)) setTimeout(() => follow(id), 500);
  };
  return card("Erase data", button("Erase", erase, { iconName: "trash" }),
    h("p.dim", "For data deletion requests: removes the data of a user, thread, trace or call from the disk."),
    () => told.value && h("p", { role: "status" }, describe(told.value)));
}

function describe({ state, result, error }) {
  if (state !== "succeeded") return error ? `${state}: ${error}` : "Erasing …";
  const removed = Object.entries(result.removed).map(([name, count]) => `${int(count)} ${name.replaceAll("_", " ")}`);
  return `Erased: ${removed.join(", ") || "nothing found"}`;
}

function connect() {
  const code = `export WANDB_BASE_URL=${location.origin}${config.root}\npython -c 'import weave; weave.init("${projectId()}")'`;
  return card("Connect", null, h("p.dim", "Any weave SDK traces into this project with two lines:"), codeBlock(code));
}

