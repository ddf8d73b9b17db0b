// Alerts: rules that watch a metric of the calls, the last result of each, and the messages that were sent.
import { computed, h, onCleanup } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { int } from "../lib/format.js";
import { empty, tabs } from "../lib/panels.js";
import { button, header, loaded, title } from "../lib/parts.js";
import { projectId } from "../lib/router.js";
import { serverAddress } from "../lib/setup.js";
import { editAlert } from "./alerts_form.js";
import { messagesView } from "./alerts_messages.js";
import { rulesView } from "./alerts_rules.js";

const REFRESH = 15_000;

/** The page of alerts; `view=messages` shows what was sent. */
export default function Alerts() {
  title("Alerts");
  const state = resource(() => ["/alerts/query", {}]);
  const timer = setInterval(() => document.visibilityState === "visible" && !state.busy.peek() && state.reload(), REFRESH);
  onCleanup(() => clearInterval(timer));
  const alerts = () => state.data.value?.alerts ?? [];
  const hasRules = computed(() => (state.data.value === null ? null : alerts().length > 0));
  const firing = () => alerts().filter((alert) => alert.enabled && alert.state === "firing").length;
  return h(
    "div.page",
    header({
      title: "Alerts",
      extra: () =>
        alerts().length
          ? [h("span.count", int(alerts().length)), firing() ? h("span.badge.error", `${firing()} firing`) : null]
          : null,
      actions: button("New alert", () => editAlert(null, state.reload), { kind: "primary", iconName: "add", needs: "write" }),
    }),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Alerts" },
      tabs(
        "Alerts",
        [
          [
            "rules",
            "Rules",
            () =>
              h(
                "div",
                // The table is made once, and stays scrolled while the rules are asked for again and again.
                loaded({ ...state, data: hasRules }, (isThere) =>
                  isThere ? rulesView(alerts, state.reload) : nothing(state.reload),
                ),
              ),
          ],
          ["messages", "Messages", () => messagesView(alerts)],
        ],
        "view",
      ),
    ),
  );
}

function nothing(reload) {
  return empty({
    title: "No alerts yet",
    text:
      "An alert watches the number of calls, their error rate, cost, latency or a score, and notifies Slack, email or a webhook " +
      "when it crosses a threshold and when it recovers. Messages only go to destinations that the server was started with:",
    code: [
      "heddle serve --alert-webhooks https://hooks.slack.com/services/,https://hooks.example.com/ \\",
      "  --smtp smtp://mail.example.com:587 --smtp-from heddle@example.com --alert-emails @example.com",
      "",
      "# the same rule over HTTP",
      `curl -s ${serverAddress()}/alerts/create -H 'content-type: application/json' -d '{`,
      `  "project_id": "${projectId()}", "name": "Too many errors",`,
      '  "metric": "error_share", "operator": ">", "threshold": 0.05, "window_seconds": 3600,',
      '  "webhook_url": "https://hooks.example.com/heddle"}\'',
    ].join("\n"),
    action: button("New alert", () => editAlert(null, reload), { kind: "primary", iconName: "add", needs: "write" }),
  });
}
