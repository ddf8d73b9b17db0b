// Setting, changing, ending and deleting a price; people think in dollars per million tokens, the API in dollars per token.
import { postProject } from "../lib/data.js";
import { attempt, confirm, form } from "../lib/dialog.js";
import { date } from "../lib/format.js";

const MILLION = 1_000_000;
const KINDS = [
  ["prompt", "Input", "prompt_token_cost"],
  ["completion", "Output", "completion_token_cost"],
  ["cache_read", "Cached input", "cache_read_input_token_cost"],
  ["cache_creation", "Cache write", "cache_creation_input_token_cost"],
];

/** Dollars per million tokens of a stored price. */
export const perMillion = (price) => Object.fromEntries(KINDS.map(([name, , key]) => [name, plain((price[key] ?? 0) * MILLION)]));

/** A number without the noise of binary fractions. */
export const plain = (value) => (value == null ? null : Number(value.toPrecision(10)));

/** Ask for a price of a model and store it; `rates` are what stands in the form at first. */
export async function addPrice({ model = "", rates = null, from = "" }, reload) {
  const done = await priceForm(
    model ? `Price of ${model}` : "Add price",
    { model, rates, from: from || day(new Date()) },
    (body) => postProject("/cost/create", body),
  );
  if (done) reload();
}

/** Change a stored price: the new one is stored before the old one goes. */
export async function editPrice(price, reload) {
  const values = { model: price.llm_id, rates: perMillion(price), from: day(date(price.effective_date)) };
  const done = await priceForm(`Edit price of ${price.llm_id}`, values, async (body) => {
    const { results } = await postProject("/cost/query", { query: oneOf([price.id]) });
    if (!results.length) throw new Error("Someone else has changed or deleted this price; close this form to see it");
    // A day that was not changed keeps its exact instant.
    const cost = body.costs[price.llm_id];
    if (cost && cost.effective_date.slice(0, 10) === values.from) cost.effective_date = price.effective_date;
    await postProject("/cost/create", body);
    await purge([price.id]);
  });
  if (done) reload();
}

/** Let a price end: from a day on the price that comes with heddle holds again, or none is charged. */
export async function endPrice(price, fallback, reload) {
  const text = fallback
    ? "From this day on, the built-in price applies again."
    : "This model has no other price: from this day on, its tokens cost nothing.";
  const done = await form(
    `End price of ${price.llm_id}`,
    [{ name: "from", label: "Ends on", type: "date", value: day(new Date()), required: true }],
    {
      action: "End",
      text,
      submit: ({ from }) => postProject("/cost/create", { costs: { [price.llm_id]: costOf(fallback ?? {}, from) } }),
    },
  );
  if (done) reload();
}

/** Delete a stored price for good. */
export async function deletePrice(price, reload) {
  const text = "Its calls are then charged at the previous price, or at the built-in one.";
  if (!(await confirm(`Delete this price of ${price.llm_id}?`, text))) return;
  if (await attempt(() => purge([price.id]), "Price deleted")) reload();
}

const oneOf = (ids) => ({ $expr: { $or: ids.map((id) => ({ $eq: [{ $getField: "id" }, { $literal: id }] })) } });
const purge = (ids) => postProject("/cost/purge", { query: oneOf(ids) });

function priceForm(heading, { model, rates, from }, save) {
  const amount = (name) => ({ type: "number", min: 0, step: "any", inputmode: "decimal", value: rates?.[name] ?? "" });
  return form(
    heading,
    [
      {
        name: "model",
        label: "Model",
        value: model,
        required: true,
        autocomplete: "off",
        hint: "Exactly as calls report it (case-sensitive).",
      },
      ...KINDS.map(([name, label]) => ({
        name,
        label: `${label}, $ per million tokens`,
        ...amount(name),
        required: name === "prompt" || name === "completion",
        hint: name.startsWith("cache") ? "Leave empty to use the input price." : "",
      })),
      {
        name: "from",
        label: "Valid from",
        type: "date",
        value: from,
        required: true,
        hint: "Until the model's next price starts.",
      },
    ],
    {
      submit: async (values) => {
        await save({ costs: { [values.model.trim()]: costOf(values, values.from) } });
        return values;
      },
    },
  );
}

function costOf(values, from) {
  // A cached token without a separate price is an ordinary input token.
  const of = (name) => (values[name] === "" || values[name] == null ? null : Number(values[name]) / MILLION);
  const prompt = of("prompt") ?? 0;
  return {
    prompt_token_cost: prompt,
    completion_token_cost: of("completion") ?? 0,
    cache_read_input_token_cost: of("cache_read") ?? prompt,
    cache_creation_input_token_cost: of("cache_creation") ?? prompt,
    effective_date: new Date(`${from}T00:00:00`).toISOString(),
  };
}

function day(at) {
  return new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 10);
}
