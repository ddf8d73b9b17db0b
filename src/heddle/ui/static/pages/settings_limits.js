// What completions of one project or one key may use on this server.
import { send } from "../lib/data.js";
import { form } from "../lib/dialog.js";

/** The limits that hold for a project or key, and whether they are its own: of the answer to GET /v1/limits. */
export function limitsOf({ defaults, data }, kind, name) {
  const own = data.find((entry) => entry.kind === kind && entry.name === name);
  return { isOwn: Boolean(own), ...(own ?? defaults.find((entry) => entry.kind === kind)) };
}

/** Ask for new limits and set them; resolves to null when nothing was changed. */
export function changeLimits(kind, name, shown, whose) {
  const hint = "0 is no limit; empty lets the server's setting hold again.";
  const number = (key, label) => ({ name: key, label, type: "number", min: 0, value: String(shown[key]), hint });
  const limit = (text) => (text === "" ? null : Number(text));
  return form("Limits of completions", [
    number("concurrency", "Completions at the same time"), number("tokens_per_minute", "Tokens per minute"),
  ], {
    text: `What completions of ${whose} may use on this server. Beyond it they are answered 429 and may try again.`,
    submit: ({ concurrency, tokens_per_minute: tokens }) => send("PUT", "/v1/limits", {
      kind, name, concurrency: limit(concurrency), tokens_per_minute: limit(tokens),
    }),
  });
}
