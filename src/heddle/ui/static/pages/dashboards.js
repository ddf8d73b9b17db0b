// All dashboards of the project, templates for new ones, and import.
import { h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { attempt, dialog, form, toast } from "../lib/dialog.js";
import { knownScores, loadDashboards, objectNameOf, storeDashboard, TEMPLATES } from "../lib/dashboards.js";
import { ago, cut } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, limits, loaded, page, timeNode, title } from "../lib/parts.js";
import { go, link, path } from "../lib/router.js";
import { plain } from "../lib/savedfilters.js";
import { table } from "../lib/table.js";

/** The list of dashboards. */
export default function Dashboards() {
  title("Dashboards");
  const state = resource(() => ({}), (_, abort) => loadDashboards(abort));
  const names = () => (state.data.peek() ?? []).map((board) => board.name);
  const create = () => chooseTemplate(names());
  return page({
    title: "Dashboards",
    extra: () => (state.data.value?.length ? h("span.count", state.data.value.length) : null),
    actions: [button("Import", () => importDashboard(names()), { iconName: "upload", needs: "write" }),
      button("New dashboard", create, { kind: "primary", iconName: "add", needs: "write" })],
  }, loaded(state, (boards) => (boards.length ? list(boards) : templates(names()))), { label: "Dashboards" });
}

function list(boards) {
  const columns = [
    { key: "name", label: "Name", render: (board) => h("a", { href: link(path`/dashboards/${board.name}`), dir: "auto" }, board.label) },
    { key: "text", label: "Description", render: (board) => h("span.dim", { dir: "auto" }, cut(board.value.description ?? "", 120)) },
    { key: "charts", label: "Charts", number: true, render: (board) => board.value.charts.length },
    { key: "version", label: "Version", number: true, render: (board) => `v${board.version}` },
    { key: "created", label: "Changed", number: true, render: (board) => timeNode(board.created, ago) },
  ];
  return h("div.tablebox", { tabindex: 0, role: "region", "aria-label": "List of dashboards" },
    table({ label: "Dashboards", columns: () => columns, rows: () => boards, key: (board) => board.name,
      href: (board) => link(path`/dashboards/${board.name}`) }));
}

const templates = (names) => [empty({ title: "Keep the numbers you watch on one page",
  text: "Chart cost, tokens, latency, errors, scores or any number in your calls, grouped by any field. Start with one of these:" }),
templateCards(names)];

function templateCards(names, done = () => {}) {
  const make = async (template) => {
    const made = await attempt(async () => {
      const value = template ? template[2](await knownScores()) : { name: "New dashboard", charts: [] };
      return storeDashboard(objectNameOf(value.name, names), value);
    });
    if (!made) return;
    done();
    go(link(path`/dashboards/${made}`, template ? {} : { edit: "new" }));
  };
  const one = (name, text, template) => h("button.templatecard", { type: "button", onclick: () => make(template), ...limits("write") }, h("b", name),
    h("span", text));
  return h("div.templates", TEMPLATES.map((template) => one(template[0], template[1], template)),
    one("Empty", "Start from scratch", null));
}

function chooseTemplate(names) {
  dialog("New dashboard", (close) => templateCards(names, close));
}

/** Read a dashboard from a file or a text; the server says what is wrong in it. */
function importDashboard(names) {
  form("Import dashboard", [{ name: "text", label: "JSON", type: "textarea", required: true, rows: 12, spellcheck: "false",
    hint: "The JSON of an exported dashboard, from this or another server" }], {
    action: "Import",
    submit: async ({ text }) => {
      let value;
      try {
        value = plain(JSON.parse(text));
      } catch (error) {
        throw new Error(`Not valid JSON: ${error.message}`);
      }
      if (!value || typeof value !== "object" || !Array.isArray(value.charts)) throw new Error("charts: a list is missing");
      const name = await storeDashboard(objectNameOf(String(value.name || "dashboard"), names), value);
      toast("Dashboard imported");
      go(link(path`/dashboards/${name}`));
    },
  });
}
