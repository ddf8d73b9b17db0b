// Where the messages of an alert go: Slack, mail, webhooks.
import { computed, each, h, signal } from "../lib/dom.js";
import { postProject } from "../lib/data.js";
import { attempt, dialog, toast } from "../lib/dialog.js";
import { button } from "../lib/parts.js";

const KINDS = [["slack", "Slack"], ["email", "E-mail"], ["webhook", "Webhook"]];
const MOST = 10;
const PLACEHOLDERS = { slack: "https://hooks.slack.com/services/…", webhook: "https://hooks.example.com/heddle",
  email: "on-call@example.com, team@example.com" };

/** The targets of a rule, that of `webhook_url` first (its id is empty). */
export const targetsOf = (rule) => [...(rule.webhook_url ? [{ id: "", kind: "webhook", url: rule.webhook_url }] : []),
  ...(rule.targets ?? [])];

/** A target in words. */
export function targetText({ kind, url, url_hint: hint, to }) {
  const name = KINDS.find(([key]) => key === kind)?.[1] ?? kind;
  return `${name} ${kind === "email" ? to.join(", ") : hint ?? url ?? ""}`;
}

/** The part of the form: {view, read}; `read()` gives `webhook_url` and `targets` as the API takes them. */
export function targetsEditor(rule) {
  let count = 0;
  const entry = (target) => ({ key: ++count, id: target.id ?? null, kind: signal(target.kind), hint: target.url_hint ?? "",
    before: target.kind, value: target.kind === "email" ? (target.to ?? []).join(", ") : target.url ?? "" });
  const known = targetsOf(rule);
  const entries = signal((known.length ? known : [{ id: "", kind: "webhook" }]).map(entry));
  const total = computed(() => entries.value.length);
  const remove = (key) => { entries.value = entries.value.filter((one) => one.key !== key); };
  const view = h("fieldset.alerttargets", h("legend", "Notify"),
    each(h("div"), () => entries.value, (one) => one.key, (_, one) => targetEditor(one, () => remove(one.key), total)),
    () => (total.value < MOST ? button("Add target", () => { entries.value = [...entries.value, entry({ kind: "email" })]; },
      { kind: "quiet", iconName: "add" }) : null),
    h("small.faint", "Webhooks must be allowed by the setting --alert-webhooks, email addresses by --alert-emails."));
  const read = () => {
    const found = entries.peek().map((one) => ({ ...one, kind: one.kind.peek(), value: one.value.trim() }));
    const first = found.find((one) => one.id === "" && one.kind === "webhook");
    return { webhook_url: first?.value || null, targets: found.filter((one) => one !== first).map(ofEntry) };
  };
  return { view, read };
}

function ofEntry({ id, kind, value, before }) {
  const own = id && kind === before ? { id } : {};
  if (kind === "email") return { ...own, kind, to: value.split(/[,;\s]+/).filter(Boolean) };
  return { ...own, kind, url: value || null };
}

function targetEditor(one, remove, total) {
  const isKept = () => one.kind.value === "slack" && Boolean(one.hint);
  return h("div.alerttarget",
    h("select", { "aria-label": "Target type", onchange: (event) => { one.kind.value = event.target.value; } },
      KINDS.map(([kind, text]) => h("option", { value: kind, selected: kind === one.kind.peek() }, text))),
    h("input", { type: () => (one.kind.value === "email" ? "text" : "url"), "aria-label": () => KINDS.find(([kind]) => kind === one.kind.value)[1],
    required: () => !isKept(), value: one.value, autocomplete: "off", spellcheck: "false",
    placeholder: () => (isKept() ? one.hint : PLACEHOLDERS[one.kind.value]), oninput: (event) => { one.value = event.target.value; } }),
    () => (total.value > 1 ? button(null, remove, { kind: "quiet", iconName: "trash", label: "Remove target" }) : null));
}

/** Send a test: at once where there is one target, else a button for each. */
export async function testTargets(alert, done) {
  const targets = targetsOf(alert.rule);
  const send = async (target) => {
    if (!(await attempt(() => postProject("/alerts/test", { id: alert.id, target: target.id })))) return false;
    toast(`A test message is on its way to ${targetText(target)}`);
    return true;
  };
  if (targets.length === 1) {
    if (await send(targets[0])) done();
    return;
  }
  await dialog(`Test ${alert.name}`, (close) => [h("ul.alerttests", targets.map((target) => h("li",
    h("span", { dir: "auto" }, targetText(target)), button("Send a test", () => send(target),
      { "aria-label": `Send a test to ${targetText(target)}` })))),
  h("div.actions", button("Messages", () => { close(); done(); }, { kind: "primary" }))]);
}
