// What exporters sent that could not be stored: they are told, but seldom tell anybody.
import { h } from "./dom.js";
import { ago, int } from "./format.js";

const ITEMS = { traces: ["span", "spans"], logs: ["log record", "log records"], metrics: ["data point", "data points"] };
const CAUSES = {
  invalid_id: "invalid id",
  invalid_metric: "cannot be counted",
  invalid_time: "invalid time",
  no_span: "without a span",
  too_many_records: "too many for one span",
  too_many_series: "too many series in the project",
};

/**
 * A short notice, each cause with its message folded away; null where nothing was rejected.
 * @param {{signal: string, cause: string, count: number, last_at: string, message: string}[]} rows
 */
export function rejections(rows) {
  if (!rows.length) return null;
  const line = ({ signal, cause, count, last_at: last, message }) => {
    const items = (ITEMS[signal] ?? ["item", "items"])[count === 1 ? 0 : 1];
    return h(
      "details",
      h("summary", `${int(count)} ${items} rejected: ${CAUSES[cause] ?? cause.replaceAll("_", " ")}, last `, ago(last)),
      h("p", { dir: "auto" }, message),
    );
  };
  return h("div.rejections", { role: "note", "aria-label": "Rejected telemetry" }, rows.map(line));
}
