// Asks for a key where the server needs one, and once more when a session ends while a page is open.
import { send } from "../lib/data.js";
import { dialog } from "../lib/dialog.js";
import { h, signal } from "../lib/dom.js";
import { codeBlock, field } from "../lib/panels.js";
import { button, title } from "../lib/parts.js";
import { config, query } from "../lib/router.js";

/**
 * The page that turns a key into a session; the address stays the one that was wanted.
 * @param {Element} logo
 * @param {(told: {user: string, admin: boolean}) => void} done
 */
export default function Login(logo, done) {
  title("Log in");
  const waits = signal(true);
  // A link from another site opens a page without the cookie, which is there for what the page itself asks for.
  send("GET", "/_ui/session").then((told) => (told.user ? done(told) : null)).catch(() => null)
    .finally(() => { waits.value = false; });
  return h("div.loginpage", () => (waits.value ? null : h("section.login", { "aria-label": "Log in" },
    h("header", logo, h("h1", "Log in to heddle")),
    h("p.dim", config.sign_in ? "Sign in with your account, or with an API key."
      : "This server needs an API key. The browser keeps a session for it, not the key."),
    config.sign_in && signInButton(), keyForm(done), howTo())));
}

/** The same as a dialog over the page that is open, which stays as it is; resolves to who logged in, or null. */
export function logInAgain() {
  return dialog("Your session has ended", (close) => [
    h("p", "Log in again to continue. Nothing on this page is lost."), h("div.logagain", config.sign_in && signInButton(), keyForm(close))]);
}

const PROBLEMS = {
  no_role: "You signed in, but none of your groups has a role here. Ask an admin of this server.",
  kept_out: "You signed in, but an admin of this server has blocked you.",
  failed: "Sign-in failed. Try again; the audit log has the reason.",
};

/** Leads to the provider, and back to the page that is open. */
function signInButton() {
  const problem = signal(PROBLEMS[query("sign_in")] ?? "");
  const begin = async () => {
    try {
      const next = location.pathname + location.search.replace(/[?&]sign_in=\w*/, "");
      location.assign((await send("POST", "/_ui/sign_in", { next })).url);
    } catch (error) {
      problem.value = error.message;
    }
  };
  return [button("Sign in", begin, { kind: "primary" }), h("p.problem", { role: "alert" }, () => problem.value)];
}

function keyForm(done) {
  const problem = signal("");
  const isBusy = signal(false);
  const input = h("input", {
    type: "password", name: "key", autocomplete: "current-password", required: true, spellcheck: "false",
    placeholder: "heddle-…", "aria-invalid": () => (problem.value ? "true" : null), "aria-describedby": "login-problem",
    autofocus: true,
  });
  const submit = async (event) => {
    event.preventDefault();
    isBusy.value = true;
    problem.value = "";
    try {
      done(await send("POST", "/_ui/session", { key: input.value }));
    } catch (error) {
      problem.value = error.message;
      input.select();
    } finally {
      isBusy.value = false;
    }
  };
  queueMicrotask(() => input.focus());
  return h("form", { onsubmit: submit }, field("API key", input),
    h("p.problem", { id: "login-problem", role: "alert" }, () => problem.value),
    h("button.button.primary", { type: "submit", disabled: () => isBusy.value }, "Log in"));
}

function howTo() {
  return h("details", h("summary", "I have no key"),
    h("p.dim", "An admin of this server can create one for you, in Settings or on its machine. It is shown only once:"),
    codeBlock("heddle keys create --user NAME"),
    h("p.dim", `SDKs take the same key: set WANDB_API_KEY, and WANDB_BASE_URL=${location.origin}${config.root}.`));
}
