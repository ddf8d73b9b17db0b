// JSON whose whole numbers keep all their digits: ids of 64 bits are common in traces, and a number of JavaScript rounds them.

const LONG = /[:[,\s]-?[1-9]\d{15,}\s*[,\]}]/;
const prototype = /** @type {any} */ (BigInt.prototype);
const { rawJSON } = /** @type {any} */ (JSON);

// Written as the digits that were read, wherever a value is stored, copied or shown as JSON.
if (rawJSON) prototype.toJSON = function toJSON() { return rawJSON(String(this)); };

/** The value of a JSON text; a whole number that a number would round is a BigInt (in browsers that can tell). */
export function parseJson(text) {
  return rawJSON && LONG.test(text) ? JSON.parse(text, /** @type {any} */ (exactly)) : JSON.parse(text);
}

function exactly(_key, value, { source }) {
  return typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(source) ? BigInt(source) : value;
}

/** A value with numbers alone, to reckon with: JavaScript cannot add a BigInt to a number. */
export function rounded(value) {
  if (typeof value === "bigint") return Number(value);
  if (Array.isArray(value)) return value.map(rounded);
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, rounded(item)]));
}
