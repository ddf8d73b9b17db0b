// What the project spends: by model, op, user and day, and the prices that it is charged at.
import { computed, h } from "../lib/dom.js";
import { get, resource } from "../lib/data.js";
import { tabs } from "../lib/panels.js";
import { button, header, segments, title } from "../lib/parts.js";
import { projectId, query, setQuery } from "../lib/router.js";
import { timeRange, timeRangePicker } from "../lib/timerange.js";
import { exportCosts } from "./costs_export.js";
import { pricesView } from "./costs_prices.js";
import { spendingView } from "./costs_spending.js";

const BY = [
  ["model", "Model"],
  ["op", "Op"],
  ["user", "User"],
  ["day", "Day"],
];
const INITIAL = "30d";

/** The page of costs; `view=prices` shows the price table. */
export default function Costs() {
  title("Costs");
  const range = timeRange(INITIAL);
  const by = () => (BY.some(([name]) => name === query("by")) ? query("by") : "model");
  const description = computed(() => address(by(), range.value));
  const isPrices = () => query("view") === "prices";
  const spending = resource(
    () => (isPrices() ? null : description.value),
    (path, abort) => get(path, abort),
  );
  const prices = resource(() => (isPrices() ? `/_ui/api/prices?project=${encodeURIComponent(projectId())}` : null));
  const own = resource(() => (isPrices() ? ["/cost/query", {}] : null));
  const reload = () => {
    prices.reload();
    own.reload();
    spending.reload();
  };
  return h(
    "div.page",
    header({
      title: "Costs",
      actions: [
        () =>
          isPrices()
            ? null
            : [
                timeRangePicker(INITIAL),
                button("Export CSV", () => exportCosts(spending.data.peek()), {
                  iconName: "download",
                  disabled: () => !spending.data.value?.groups.length,
                }),
              ],
      ],
    }),
    h(
      "div.scroll",
      { tabindex: 0, role: "region", "aria-label": "Costs" },
      tabs(
        "Costs",
        [
          [
            "spending",
            "Spending",
            () => [
              h(
                "div",
                segments("By", BY, by, (name) => setQuery({ by: name === "model" ? null : name })),
              ),
              spendingView(spending, reload),
            ],
          ],
          ["prices", "Prices", () => pricesView(prices, own, reload)],
        ],
        "view",
      ),
    ),
  );
}

function address(by, { from, to }) {
  const zone = -new Date().getTimezoneOffset() * 60;
  const parts = new URLSearchParams({ project: projectId(), by, zone: String(zone) });
  if (from !== null) parts.set("start", String(from));
  if (to !== null) parts.set("end", String(to));
  return `/_ui/api/costs?${parts}`;
}
