// The costs on the page as CSV: one line per group, with what it cost in each interval.
import { download, writeTable } from "../lib/importers.js";
import { projectId } from "../lib/router.js";
import { nameText } from "./costs_spending.js";

/** Save what /_ui/api/costs answered as a file. */
export function exportCosts(found) {
  const { by } = found;
  const last = Math.max(0, Math.ceil((found.end - found.start) / found.step) - 1);
  const buckets = by === "day" ? [] : Array.from({ length: last + 1 }, (_, bucket) => bucket);
  const heading = [
    by,
    "cost_usd",
    "calls",
    "requests",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_creation_tokens",
    "models_without_price",
    ...buckets.map((bucket) => new Date((found.start + bucket * found.step) * 1000).toISOString()),
  ];
  const lines = found.groups.map((group) => [
    safe(nameText(group.name, by, found.step)),
    group.cost ?? "",
    group.calls,
    group.requests,
    group.prompt,
    group.completion,
    group.cache_read,
    group.cache_creation,
    safe(group.unpriced.join(" ")),
    ...buckets.map((bucket) => group.cells[bucket] ?? 0),
  ]);
  download(`costs-${projectId().replace("/", "-")}-by-${by}.csv`, [`${writeTable([heading, ...lines], ",")}\n`], "text/csv");
}

/** Names come from traced programs: a spreadsheet must not take one for a formula. */
const safe = (text) => (/^[=+\-@\t\r]/.test(text) ? `'${text}` : text);
