// The messages about alerts, and how sending each went; the server keeps them for 30 days.
import { computed, h, onCleanup } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { ago, int, plural } from "../lib/format.js";
import { rawJson } from "../lib/json.js";
import { empty, facts } from "../lib/panels.js";
import { loaded, timeNode } from "../lib/parts.js";
import { query, setQuery } from "../lib/router.js";
import { pager, table } from "../lib/table.js";
import { targetsOf, targetText } from "./alerts_targets.js";
import { valueText } from "./alerts_words.js";

const PAGE = 50;
const REFRESH = 3000;
const EVENTS = { "alert.firing": ["firing", "error"], "alert.resolved": ["resolved", "good"], "alert.test": ["test", ""] };

/** The messages, newest first; `alerts()` gives the rules by which they can be chosen. */
export function messagesView(alerts) {
  const from = () => Math.max(0, Number(query("from")) || 0);
  const state = resource(() => ["/alerts/deliveries/query", { id: query("alert"), limit: PAGE + 1, offset: from() }]);
  const shown = () => state.data.value?.deliveries ?? [];
  const hasMessages = computed(() => (state.data.value === null ? null : shown().length > 0));
  const isPending = () => state.data.peek()?.deliveries.some((entry) => entry.state === "pending");
  const timer = setInterval(() => isPending() && !state.busy.peek() && state.reload(), REFRESH);
  onCleanup(() => clearInterval(timer));
  const turn = (step) => setQuery({ from: from() + step || null }, false);
  return [
    h(
      "label.comparewith",
      "Messages of",
      h("select", { "aria-label": "Alert", onchange: (event) => setQuery({ alert: event.target.value, from: null }) }, () => [
        h("option", { value: "", selected: !query("alert") }, "all alerts"),
        ...alerts().map((alert) => h("option", { value: alert.id, selected: query("alert") === alert.id }, alert.name)),
      ]),
    ),
    h(
      "div",
      loaded({ ...state, data: hasMessages }, (isThere) =>
        isThere
          ? [
              messageTable(() => shown().slice(0, PAGE), alerts),
              () =>
                from() || shown().length > PAGE
                  ? pager(
                      `${int(from() + 1)} to ${int(from() + Math.min(PAGE, shown().length))}`,
                      () => (from() ? () => turn(-PAGE) : null),
                      () => (shown().length > PAGE ? () => turn(PAGE) : null),
                    )
                  : null,
            ]
          : empty({
              title: "No messages",
              text: "A message is sent when an alert fires and when it recovers. Use the bell of a rule to send a test.",
            }),
      ),
    ),
  ];
}

function messageTable(deliveries, alerts) {
  const nameOf = (entry) =>
    entry.body?.data?.name ?? alerts().find((alert) => alert.id === entry.alert_id)?.name ?? entry.alert_id;
  const columns = [
    {
      key: "event",
      label: "Event",
      width: "100px",
      render: (entry) => {
        const [text, kind] = EVENTS[entry.event] ?? [entry.event, ""];
        return h("span.badge", { class: kind }, text);
      },
    },
    {
      key: "name",
      label: "Alert",
      width: "30%",
      render: (entry) => h("b.alertlabel", { title: nameOf(entry), dir: "auto" }, nameOf(entry)),
    },
    {
      key: "value",
      label: "Value",
      number: true,
      render: (entry) => (entry.body?.data?.rule ? valueText(entry.body.data.rule, entry.body.data.value) : ""),
    },
    { key: "calls", label: "Calls", number: true, render: (entry) => int(entry.body?.data?.calls) },
    { key: "target", label: "To", width: "20%", render: (entry) => h("span.dim", { dir: "auto" }, targetName(entry, alerts())) },
    { key: "state", label: "Delivery", width: "26%", render: deliveryText },
    {
      key: "created",
      label: "Sent",
      number: true,
      render: (entry) => timeNode(entry.created_at, ago),
    },
  ];
  return h(
    "section.card.alertscard",
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Messages" },
      table({ columns: () => columns, rows: deliveries, key: (entry) => entry.id, label: "Messages", onopen: show }),
    ),
  );
}

/** The target of a message, as its rule has it now. */
function targetName(entry, alerts) {
  const rule = alerts.find((alert) => alert.id === entry.alert_id)?.rule;
  const target = rule && targetsOf(rule).find((one) => one.id === entry.target);
  return target ? targetText(target) : "";
}

function deliveryText(entry) {
  const tries = plural(entry.attempts, "attempt");
  if (entry.state === "delivered")
    return h("span", h("span.badge.good", "delivered"), h("span.dim", ` ${entry.attempts > 1 ? tries : ""}`));
  const badge = entry.state === "failed" ? h("span.badge.error", "failed") : h("span.badge.warn", "waiting");
  return h(
    "span",
    { title: entry.error ?? "" },
    badge,
    h("span.dim", ` ${entry.attempts ? tries : ""}`, entry.error ? ` · ${entry.error}` : ""),
  );
}

function show(entry) {
  return dialog(
    "Message",
    () => [
      facts([
        ["Id", h("span.mono", entry.id)],
        ["State", entry.state],
        ["Attempts", int(entry.attempts)],
        ["Created", timeNode(entry.created_at)],
        ["Next attempt", timeNode(entry.next_at)],
        ["Ended", timeNode(entry.ended_at)],
        ["Problem", entry.error],
      ]),
      rawJson(entry.body),
    ],
    { wide: true },
  );
}
