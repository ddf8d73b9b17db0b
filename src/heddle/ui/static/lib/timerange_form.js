// A time range by its two ends.
import { form } from "./dialog.js";
import { date } from "./format.js";
import { setQuery } from "./router.js";

/** Ask for a beginning and an end, and put them into the address. */
export async function typeRange(range) {
  const values = await form("Time range", [
    { name: "from", label: "From", type: "datetime-local", step: 1, value: localTime(range.from) },
    { name: "to", label: "To", type: "datetime-local", step: 1, value: localTime(range.to) },
  ], { action: "Show" });
  if (!values) return;
  const first = values.from && new Date(values.from).getTime() / 1000;
  const last = values.to && new Date(values.to).getTime() / 1000;
  setQuery({ t: null, t0: first, t1: last, after: null, before: null }, false);
}

function localTime(value) {
  const at = date(value);
  return at ? new Date(at.getTime() - at.getTimezoneOffset() * 60_000).toISOString().slice(0, 19) : "";
}
