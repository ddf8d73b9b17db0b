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
