// The rules with their state and last value; pausing, testing, changing and deleting them.
import { h } from "../lib/dom.js";
import { postProject } from "../lib/data.js";
import { attempt, confirm } from "../lib/dialog.js";
import { ago, date } from "../lib/format.js";
import { button, timeNode } from "../lib/parts.js";
import { link, setQuery } from "../lib/router.js";
import { readFilters } from "../lib/savedfilters.js";
import { shareBar } from "../lib/chart.js";
import { table } from "../lib/table.js";
import { sameRange } from "../lib/timerange.js";
import { ruleText, scopeText, valueText } from "./alerts_words.js";
import { bodyOf, editAlert } from "./alerts_form.js";
import { testTargets } from "./alerts_targets.js";

/** The table of rules, those that fire first. */
export function rulesView(alerts, reload) {
  const rank = (alert) => (!alert.enabled ? 2 : alert.state === "firing" ? 0 : 1);
  const rows = () => [...alerts()].sort((one, other) => rank(one) - rank(other) || one.name.localeCompare(other.name));
  const columns = [
    { key: "state", label: "State", width: "104px", render: stateBadge },
    { key: "name", label: "Alert", width: "44%", class: "alertname", render: nameCell },
    { key: "value", label: "Last value", number: true, width: "150px", render: valueCell },
    {
      key: "since",
      label: "Since",
      number: true,
      width: "110px",
      render: (alert) =>
        alert.changed_at && alert.state === "firing" ? timeNode(alert.changed_at, ago) : "",
    },
    {
      key: "checked",
      label: "Checked",
      number: true,
      width: "110px",
      render: (alert) =>
        alert.checked_at
          ? timeNode(alert.checked_at, ago)
          : h("span.faint", alert.enabled ? "soon" : ""),
    },
    { key: "actions", label: h("span.hidden-text", "Actions"), class: "alertactions", render: (alert) => actions(alert, reload) },
  ];
  const made = table({
    columns: () => columns,
    rows,
    key: (alert) => alert.id,
    label: "Alerts",
    onopen: (alert) => editAlert(alert, reload),
  });
  return h("section.card.alertscard", h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "Rules" }, made));
}

function stateBadge(alert) {
  if (!alert.enabled) return h("span.badge", "paused");
  if (alert.state === "firing") return h("span.badge.error", "firing");
  return alert.problem ? h("span.badge.warn", { title: alert.problem }, "problem") : h("span.badge.good", "quiet");
}

function nameCell(alert) {
  const scope = scopeText(alert.rule);
  return h(
    "div.alerttext",
    h("b", { title: alert.name, dir: "auto" }, alert.name),
    h(
      "span.dim",
      { title: alert.problem ?? scope },
      ruleText(alert.rule),
      scope ? ` · ${scope}` : "",
      alert.problem ? h("span.worse", ` · ${alert.problem}`) : null,
    ),
  );
}

/** The time that was measured last. */
function windowOf({ rule, checked_at: at }) {
  const to = Math.ceil(date(at).getTime() / 1000);
  return { from: to - rule.window_seconds, to };
}

/** The last value as the way to the calls that it was measured of. */
function measured(alert) {
  const { rule, value } = alert;
  const read = readFilters(rule.filter, rule.query);
  const more = rule.metric === "cost" ? [["used", "exists"]] : [];
  const f = JSON.stringify([...read.conditions, ...more]);
  const href = link("/traces", { f, s: read.text || null, roots: read.roots ? "1" : "0", ...sameRange(windowOf(alert)) });
  return h("a.plainlink", { href, title: "Show the measured calls" }, valueText(rule, value));
}

function valueCell(alert) {
  const { rule, value } = alert;
  if (value === null)
    return h("span.faint", { title: "Too few calls in the time window" }, alert.checked_at ? "too few calls" : "–");
  const share = rule.threshold ? value / rule.threshold : 0;
  return shareBar(
    share / (share > 1 ? share : 1),
    measured(alert),
    alert.state === "firing" && alert.enabled ? "var(--error)" : "var(--accent)",
  );
}

function actions(alert, reload) {
  const act = (iconName, label, action, needs = "write") => button(null, action, { kind: "quiet", iconName, label: `${label} ${alert.name}`, needs });
  return [
    act(alert.enabled ? "pause" : "play", alert.enabled ? "Pause" : "Resume", () => setEnabled(alert, !alert.enabled, reload)),
    act("bell", "Send a test message for", () => test(alert)),
    act("edit", "Edit", () => editAlert(alert, reload)),
    act("threads", "Messages of", () => setQuery({ view: "messages", alert: alert.id }, false), "read"),
    act("trash", "Delete", () => remove(alert, reload), "delete"),
  ];
}

async function setEnabled(alert, enabled, reload) {
  await attempt(() => postProject("/alerts/update", { ...bodyOf(alert), enabled }), enabled ? "Alert resumed" : "Alert paused");
  // Also after a refusal: somebody else has changed the rule.
  reload();
}

const test = (alert) => testTargets(alert, () => setQuery({ view: "messages", alert: alert.id }, false));

async function remove(alert, reload) {
  if (!(await confirm(`Delete ${alert.name}?`, "The rule is deleted and unsent messages are dropped. This cannot be undone."))) return;
  if (await attempt(() => postProject("/alerts/delete", { id: alert.id }), "Alert deleted")) reload();
}
