// The frame around every page: the navigation bar with its project, the theme, the global keys.
import { effect, h, signal } from "./lib/dom.js";
import { config, go, here, link, outlet, params, projectId, query, siteLink } from "./lib/router.js";
import { failure, icon, keys } from "./lib/parts.js";
import { ApiError, awaitServer, isAway, lacksModule, stored } from "./lib/data.js";
import { provideView } from "./lib/views.js";

provideView("chat", () => import("./lib/chat.js"));
provideView("media", () => import("./lib/media.js"));
provideView("textdiff", () => import("./lib/textdiff.js"));
provideView("value", () => import("./lib/value.js"));

/**
 * The entries of the navigation bar: [group, [[name, icon, path, key], …]]; the key follows `g`.
 * @type {[string, string[][]][]}
 */
const RAIL = [
  ["Observe", [["Overview", "overview", "", "o"], ["Calls", "calls", "/traces", "c"], ["Errors", "error", "/errors", "w"], ["Threads", "threads", "/threads", "h"],
    ["Dashboards", "board", "/dashboards", "v"], ["Costs", "cost", "/costs", "$"], ["Metrics", "chart", "/metrics", "x"],
    ["Alerts", "bell", "/alerts", "a"]]],
  ["Evaluate", [["Evaluations", "evaluate", "/evaluations", "e"], ["Leaderboards", "leaderboard", "/leaderboards", "l"],
    ["Scorers", "scorer", "/scorers", "s"], ["Datasets", "data", "/datasets", "d"], ["Annotation", "annotate", "/queues", "q"],
    ["Replays", "replay", "/replays", "r"]]],
  ["Build", [["Playground", "play", "/playground", "p"], ["Prompts & objects", "objects", "/objects", "b"],
    ["Ops", "code", "/ops", "f"], ["Models", "models", "/models", "m"]]],
  ["Train", [["Training jobs", "chart", "/training", "t"], ["Trajectories", "trajectory", "/trajectories", "j"],
    ["Improvements", "redo", "/improvements", "y"]]],
  ["System", [["Inference", "engine", "/inference", "i"], ["Settings", "settings", "/settings", ","]]],
];

const theme = signal(document.documentElement.dataset.theme);
const lastProject = stored("project", "");
const needsLogin = signal(config.needs_key && !config.user);

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("heddle.theme", theme.value);
  } catch {
    // The theme lasts as long as the page, then.
  }
});
effect(() => {
  if (projectId()) lastProject.value = projectId();
});
// What a press or a key began and nobody waits for.
addEventListener("unhandledrejection", (event) => {
  const { reason } = event;
  if (!(reason instanceof ApiError) && !lacksModule(reason)) return;
  event.preventDefault();
  import("./lib/dialog.js").then(({ tellError }) => tellError(reason), () => reportError(reason));
});
addEventListener("heddle:login", () => {
  if (config.needs_key && !needsLogin.peek()) logInAgain();
});

/** Whether the navigation bar, which is folded in narrow windows, lies unfolded above the page. */
const isUnfolded = signal(false);
const unfold = h("button.unfold", { type: "button", "aria-label": "Navigation", "aria-controls": "rail",
  "aria-expanded": () => String(isUnfolded.value), onclick: () => { isUnfolded.value = !isUnfolded.peek(); } }, icon("calls"));
effect(() => {
  here.value;
  isUnfolded.value = false;
});

const main = h("main", { id: "main", tabindex: "-1", inert: () => isUnfolded.value });
const app = document.getElementById("app");
app.append(
  unfold,
  h("nav.rail", { id: "rail", "aria-label": "Main", class: () => (isUnfolded.value ? "unfolded" : "") },
    h("a.brand", { href: siteLink("/"), title: "heddle, all projects" }, logo(), h("span", "heddle")),
    h("button.switcher", { type: "button", title: "Switch project", onclick: () => palette("project ") },
      h("span", h("small", () => projectName()[0]), h("b", () => projectName()[1])), icon("chevron")),
    h("button.nav", { type: "button", title: "Search and commands", onclick: () => palette("") }, icon("search"),
      h("span", "Search"), h("kbd", "Ctrl K")),
    () => (openProject()
      ? RAIL.map(([name, items]) => h("section", { "aria-label": name }, h("h2", name), items.map(navigation))) : siteRail()),
    h("div.railfoot", h("button.nav", { type: "button", onclick: switchTheme, title: "Switch theme" }, icon("sun"),
      h("span", "Theme")),
      () => (config.needs_key && !needsLogin.value) && h("button.nav", { type: "button", onclick: logOut, title: "Log out" },
        icon("logout"), h("span", `Log out ${config.user}`)))),
  h("div.shade", { hidden: () => !isUnfolded.value, onclick: () => { isUnfolded.value = false; } }),
  main, h("div.away", { role: "status" }, () => isAway.value && "The server cannot be reached. Trying again…"));
addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || !isUnfolded.peek()) return;
  isUnfolded.value = false;
  unfold.focus();
});
matchMedia("(min-width: 1101px)").addEventListener("change", () => { isUnfolded.value = false; });

effect(() => {
  app.classList.toggle("bare", needsLogin.value);
  if (needsLogin.value) import("./pages/login.js").then((module) => main.replaceChildren(module.default(logo(), logIn)));
});
const show = outlet(main, (error) => {
  main.replaceChildren(failure(error, () => location.reload()));
  if (lacksModule(error)) awaitServer();
});
addEventListener("heddle:retry", () => needsLogin.peek() || show());
effect(() => {
  if (!needsLogin.value) show();
});

keys({
  g: [() => addEventListener("keydown", jump, { once: true, capture: true }), "then a letter: go to its page"],
  "?": [() => import("./lib/palette.js").then((module) => module.showKeys(RAIL)), "this list"],
});
addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey)) return;
  event.preventDefault();
  palette("");
});

function jump(event) {
  const found = RAIL.flatMap(([, items]) => items).find((item) => item[3] === event.key);
  if (!found || !openProject()) return;
  event.preventDefault();
  event.stopPropagation();
  go(link(found[2], {}, openProject()));
}

function palette(text) {
  import("./lib/palette.js").then((module) => module.openPalette({ text, rail: RAIL, project: openProject() }));
}

function openProject() {
  return params.value.entity ? projectId() : lastProject.value;
}

function projectName() {
  const [entity, name] = openProject().split("/");
  return name ? [entity, name] : ["no project", "Projects"];
}

function navigation([name, iconName, path, key]) {
  const base = link("", {}, openProject());
  const at = () => here.value.pathname.slice(base.length).replace(/\/$/, "");
  const isCurrent = () => here.value.pathname.startsWith(base)
    && (path === "" ? at() === "" : at() === path || at().startsWith(`${path}/`));
  return h("a.nav", { href: () => link(path, { t: path === "" || path === "/traces" || path === "/costs" ? query("t") : null },
    openProject()), title: `${name} (g ${key})`, "aria-current": () => (isCurrent() ? "page" : null) }, icon(iconName),
    h("span", name));
}

function siteRail() {
  const items = [["Projects", "folder", "/"], ["Inference", "engine", "/inference"], ["Settings", "settings", "/settings"]];
  return h("section", { "aria-label": "Server" }, items.map(([name, iconName, path]) =>
    h("a.nav", { href: siteLink(path), title: name,
      "aria-current": () => (here.value.pathname === siteLink(path) ? "page" : null) }, icon(iconName), h("span", name))));
}

function switchTheme() {
  const isDark = theme.value === "dark" || (theme.value !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  theme.value = isDark ? "light" : "dark";
}

function logIn({ user, admin, grants }) {
  Object.assign(config, { user, admin, grants });
  needsLogin.value = false;
}

let again = null;

/** Ask for a key above the page, which goes on where it was; for another user it begins anew. */
async function logInAgain() {
  again ??= import("./pages/login.js").then((module) => module.logInAgain());
  const told = await again;
  again = null;
  if (told && told.user !== config.user) location.reload();
  else if (told) dispatchEvent(new Event("heddle:retry"));
}

async function logOut() {
  const left = await fetch(`${config.root}/_ui/session`, { method: "DELETE", headers: { "x-heddle-ui": "1" } });
  const { sign_out: elsewhere } = await left.json().catch(() => ({}));
  location.assign(elsewhere ?? siteLink("/"));
}

/** The logo: warp threads and one weft. */
function logo() {
  return h("svg", { viewBox: "0 0 32 32", width: 22, height: 22, "aria-hidden": "true" },
    h("rect", { width: 32, height: 32, rx: 8, fill: "#0f766e" }),
    h("path", { d: "M9 6v20M16 6v20M23 6v20", stroke: "#fff", "stroke-width": 2.4, "stroke-linecap": "round", opacity: 0.55 }),
    h("path", { d: "M5 12c4 0 4 8 8 8s4-8 8-8 4 8 7 8", stroke: "#fff", "stroke-width": 2.4, "stroke-linecap": "round",
      fill: "none" }));
}
