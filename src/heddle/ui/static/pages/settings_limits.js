// What one project or one key may have on this server, and what it uses of that.
import { send } from "../lib/data.js";
import { form } from "../lib/dialog.js";
import { h } from "../lib/dom.js";
import { bytes, int, when } from "../lib/format.js";

/** The limits that hold for a project or key, and whether any is its own: of the answer to GET /v1/limits. */
export function limitsOf({ defaults, data }, kind, name) {
  const found = data.find((entry) => entry.kind === kind && entry.name === name) ?? { own: [], uses: [] };
  return { ...defaults.find((entry) => entry.kind === kind), ...found, isOwn: found.own.length > 0 };
}

/** Ask for new limits and set them; resolves to null when nothing was changed. */
export function changeLimits(kind, name, shown, whose) {
  const hint = "0 means no limit; leave empty for the server's setting.";
  const number = (key, label) => ({ name: key, label, type: "number", min: 0, value: String(shown[key]), hint });
  const limit = (text) => (text === "" ? null : Number(text));
  return form("Limits", [
    number("concurrency", "Concurrent completions"), number("tokens_per_minute", "Tokens per minute"),
    {
      name: "quotas", label: "Quotas", autocomplete: "off", placeholder: shown.quotas, value: shown.own.includes("quotas") ? shown.quotas : "",
      hint: `For example all requests 600/minute, opentelemetry bytes 2GiB/day${kind === "project" ? ", disk 50GiB" : ""}; `
        + "none means no quota; leave empty for the server's setting.",
    },
  ], {
    text: `What ${whose} may use on this server. Requests beyond it are rejected with 429 and can be retried.`,
    submit: ({ concurrency, tokens_per_minute: tokens, quotas }) => send("PUT", "/v1/limits", {
      kind, name, concurrency: limit(concurrency), tokens_per_minute: limit(tokens), quotas: quotas.trim() || null,
    }),
  });
}

/** How much is used of each quota: a table, or nothing without quotas. */
export function quotaUses(label, uses) {
  if (!uses.length) return null;
  const row = ({ quota, unit, limit, used, ends_at: ends }) => {
    const show = unit === "bytes" || unit === "disk" ? bytes : int;
    return h("tr", h("th", { scope: "row" }, quota, ends && h("small", `until ${when(ends)}`)),
      h("td.sharecell", { "aria-hidden": "true" },
        h("span.sharetrack", h("i", { style: { width: `${Math.min(100, (100 * used) / limit)}%` } }))),
      h("td.number", `${show(used)} of ${show(limit)}`));
  };
  return h("table.shares", { "aria-label": label }, h("tbody", uses.map(row)));
}
