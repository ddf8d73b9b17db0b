// The lines that connect a program to this very server, for pages that have nothing to show yet.
import { config } from "./router.js";

/** Where clients find this server, as the browser reached it. */
export const serverAddress = () => location.origin + config.root;

/** What stands for the key in lines to copy. */
export const keyText = () => (config.needs_key ? "YOUR_KEY" : "0".repeat(40));

/** Three lines for a shell that install the SDK, name this server and trace a first call. */
export function setupLines(project = "me/first") {
  return [
    "pip install weave",
    `export WANDB_BASE_URL=${serverAddress()} WANDB_API_KEY=${keyText()}`,
    `python -c 'import statistics, weave; weave.init("${project}"); weave.op(statistics.mean)([1, 2, 3])'`,
  ].join("\n");
}

/** What must be said about keys, or an empty text where none is needed. */
export const keyHint = () =>
  config.needs_key
    ? "This server needs a key: replace YOUR_KEY with yours. " +
      "Create new ones in Settings, or with `heddle keys create` on the server."
    : "This server needs no key: any 40 characters will do.";
