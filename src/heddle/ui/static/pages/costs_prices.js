// The price table: what each model costs, from when until when, and where no price is known.
import { computed, h } from "../lib/dom.js";
import { compact, date, day, number } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, loaded, searchBox } from "../lib/parts.js";
import { projectId, query, setQuery } from "../lib/router.js";
import { table } from "../lib/table.js";
import { addPrice, deletePrice, editPrice, endPrice, perMillion, plain } from "./costs_form.js";

/** All prices: the project's own with their time, those that come with heddle, and models that have none. */
export function pricesView(prices, own, reload) {
  const rows = computed(() =>
    prices.data.value && own.data.value ? priceRows(prices.data.value.models, own.data.value.results) : [],
  );
  const words = () => (query("q") ?? "").toLowerCase();
  const shown = computed(() => rows.value.filter((row) => row.model.toLowerCase().includes(words())));
  return [
    h(
      "div.priceshead",
      searchBox(
        "Search models",
        () => query("q") ?? "",
        (text) => setQuery({ q: text }),
      ),
      h(
        "p.dim",
        "Dollars per million tokens. A call is charged at the price in force when it started; your own prices override " +
          "built-in ones. Calls older than the first price of their model are charged at its latest.",
      ),
      button("Add price", () => addPrice({}, reload), { kind: "primary", iconName: "add", needs: "write" }),
    ),
    h(
      "section.card.pricescard",
      loaded(prices, () => loaded(own, () => () => (rows.value.length ? priceTable(shown, reload) : nothing(reload)))),
    ),
  ];
}

/** One row per price: {key, model, rates, from, until, source: "own" | "default" | "none", state, price, fallback, calls}. */
function priceRows(models, stored) {
  const used = new Map(models.map((entry) => [entry.model, entry]));
  const byModel = new Map();
  for (const price of stored) byModel.set(price.llm_id, [...(byModel.get(price.llm_id) ?? []), price]);
  const names = [...new Set([...used.keys(), ...byModel.keys()])];
  const now = Date.now();
  return names
    .flatMap((model) => {
      const entry = used.get(model) ?? { model, calls: 0, price: null, default: null };
      const prices = [...(byModel.get(model) ?? [])].sort(
        (one, other) => date(other.effective_date).getTime() - date(one.effective_date).getTime(),
      );
      const inForce = prices.findIndex((price) => date(price.effective_date).getTime() <= now);
      const mine = prices.map((price, index) => ({
        key: price.id,
        model,
        calls: entry.calls,
        rates: perMillion(price),
        from: price.effective_date,
        until: prices[index - 1]?.effective_date ?? null,
        source: "own",
        state: index === inForce ? "now" : index < inForce || inForce < 0 ? "later" : "past",
        price,
        fallback: entry.default,
      }));
      if (inForce >= 0) return mine;
      const other = {
        key: `default ${model}`,
        model,
        calls: entry.calls,
        rates: entry.default,
        from: null,
        until: prices.at(-1)?.effective_date ?? null,
        state: "now",
        price: null,
        fallback: null,
      };
      if (entry.default) return [...mine, { ...other, source: "default" }];
      return prices.length ? mine : [{ ...other, source: "none" }];
    })
    .sort((one, other) => Number(other.source === "none") - Number(one.source === "none"));
}

function priceTable(rows, reload) {
  const rate = (name) => (row) =>
    row.rates ? h("span", { class: row.state === "past" ? "dim" : "" }, dollars(row.rates[name] ?? 0)) : h("span.faint", "–");
  const columns = [
    {
      key: "model",
      label: "Model",
      width: "28%",
      render: (row) => h("b.modelname", { title: row.model, dir: "auto" }, row.model),
    },
    { key: "source", label: "Price", render: source },
    { key: "prompt", label: "Input", number: true, render: rate("prompt") },
    { key: "completion", label: "Output", number: true, render: rate("completion") },
    { key: "cache_read", label: "Cached input", number: true, render: rate("cache_read") },
    { key: "cache_creation", label: "Cache write", number: true, render: rate("cache_creation") },
    { key: "valid", label: "Valid", render: validity },
    { key: "calls", label: "Calls", number: true, render: (row) => (row.state === "now" ? compact(row.calls) : "") },
    { key: "actions", label: h("span.hidden-text", "Actions"), class: "priceactions", render: (row) => actions(row, reload) },
  ];
  return h(
    "div.tablebox",
    { tabindex: 0, role: "region", "aria-label": "Prices" },
    table({
      columns: () => columns,
      rows: () => rows.value,
      key: (row) => row.key,
      label: "Prices",
      onopen: (row) => row.source === "own" && editPrice(row.price, reload),
    }),
    () => (rows.value.length ? null : h("p.tablenote", "No model matches this search.")),
  );
}

/** Dollars with at least two digits behind the point, so that columns line up. */
function dollars(value) {
  const [whole, part = ""] = String(number(plain(value))).split(".");
  return `$${whole}.${part.padEnd(2, "0")}`;
}

function source(row) {
  if (row.source === "none") return h("span.badge.warn", "no price");
  if (row.source === "default") return h("span.badge", { title: "Built-in price" }, "default");
  return h(
    "span.badge",
    { class: row.state === "now" ? "good" : "" },
    { now: "your price", later: "later", past: "ended" }[row.state],
  );
}

function validity(row) {
  if (row.source === "none") return "";
  const from = row.from ? day(row.from) : "";
  const until = row.until ? day(row.until) : "";
  return h(
    "span",
    { class: row.state === "now" ? "" : "dim" },
    from && until ? `${from} – ${until}` : from ? `from ${from}` : until ? `until ${until}` : "always",
  );
}

function actions(row, reload) {
  if (row.source === "none")
    return button("Add price", () => addPrice({ model: row.model }, reload), {
      kind: "primary",
      needs: "write",
      "aria-label": `Add price for ${row.model}`,
    });
  if (row.source === "default")
    return button("Set your own", () => addPrice({ model: row.model, rates: row.rates }, reload), {
      needs: "write",
      "aria-label": `Set your own price of ${row.model}`,
    });
  const act = (iconName, label, action) =>
    button(null, action, { kind: "quiet", iconName, label: `${label} the price of ${row.model}`, needs: "admin" });
  return [
    act("edit", "Edit", () => editPrice(row.price, reload)),
    row.state === "now" && !row.until && act("stop", "End", () => endPrice(row.price, row.fallback, reload)),
    act("trash", "Delete", () => deletePrice(row.price, reload)),
  ];
}

function nothing(reload) {
  return empty({
    title: "No models used yet",
    text: "Models appear here with their price once a call reports their tokens. You can also set a price in advance.",
    code: [
      `client = weave.init("${projectId()}")`,
      'client.add_cost(llm_id="my-model", prompt_token_cost=2e-7, completion_token_cost=6e-7)',
    ].join("\n"),
    action: button("Add price", () => addPrice({}, reload), { kind: "primary", needs: "write" }),
  });
}
