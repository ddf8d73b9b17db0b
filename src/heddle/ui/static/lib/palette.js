// Ctrl-K: find a page, a project, an object, an op, or calls by any text that they hold; and the list of keys.
import { effect, h, signal } from "./dom.js";
import { get, post } from "./data.js";
import { dialog } from "./dialog.js";
import { nameOf } from "./format.js";
import { boundKeys } from "./parts.js";
import { go, link, path, siteLink } from "./router.js";

const MOST_CALLS = 8;

/** Open the palette with a text in it; resolves when it is left. */
export function openPalette({ text, rail, project }) {
  if (document.querySelector("dialog[open]:not(.drawer)")) return null;
  return dialog("Go to", (close) => {
    const typed = signal(text);
    const chosen = signal(0);
    const found = signal([]);
    const problem = signal("");
    const choose = (entry) => {
      if (!entry) return;
      close();
      go(entry.href);
    };
    let turn = 0;
    effect(() => {
      const words = typed.value.trim();
      const mine = ++turn;
      found.value = pages(rail, project, words);
      chosen.value = 0;
      search(words, project).then((more) => {
        if (mine !== turn) return;
        found.value = [...pages(rail, project, words), ...more.found].slice(0, 40);
        problem.value = more.problem;
      });
    });
    const move = (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        chosen.value = (chosen.value + step + found.value.length) % Math.max(1, found.value.length);
        list.children[chosen.value]?.scrollIntoView({ block: "nearest" });
      } else if (event.key === "Enter") {
        event.preventDefault();
        choose(found.value[chosen.value]);
      }
    };
    const list = h("ul.palette", { role: "listbox", id: "palette", "aria-label": "Results" },
      () => found.value.map((entry, index) =>
      h("li", { role: "option", id: `palette-${index}`, "aria-selected": () => String(chosen.value === index),
        onclick: () => choose(entry), onpointermove: () => { chosen.value = index; } },
        h("span", entry.text), h("small", { dir: "auto" }, entry.parts
          ? entry.parts.map((part, place) => (place % 2 ? h("mark", part) : part)) : entry.note))));
    return [h("input", {
      type: "text", role: "combobox", "aria-label": "Page, project, object, op, or any text in calls", "aria-expanded": "true",
        "aria-controls": "palette", "aria-activedescendant": () => `palette-${chosen.value}`,
      placeholder: "Page, project, object, op, or any text in calls", value: text, autofocus: true, autocomplete: "off",
      oninput: (event) => { typed.value = event.target.value; }, onkeydown: move,
    }), list, () => (found.value.length || problem.value ? null : h("p.dim", "Nothing found")),
      h("p.problem", { role: "alert" }, () => problem.value && `Not everything could be searched: ${problem.value}`)];
  });
}

/** The keys that work on this page. */
export function showKeys(rail) {
  const jumps = rail.flatMap(([, items]) => items).map(([name, , , key]) => [`g ${key}`, name]);
  const rows = (entries) =>
    h("dl.keys", entries.map(([key, text]) => h("div", h("dt", h("kbd", key === " " ? "space" : key)), h("dd", text))));
  return dialog("Keys", () => [h("h3", "On this page"), rows([...boundKeys(), ["Ctrl K", "search and commands"]]),
    h("h3", "Go to"), rows(jumps)], { wide: true });
}

function pages(rail, project, words) {
  const isProject = words.startsWith("project");
  const all = isProject ? [] : project ? rail
    .flatMap(([group, items]) => items.map(([name, , place]) => ({ text: name, note: group, href: link(place, {}, project) })))
    : [];
  return [...all, { text: "All projects", note: "Server", href: siteLink("/") }]
    .filter(({ text }) => matches(text, isProject ? "" : words));
}

const matches = (text, words) => words.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));

async function search(words, project) {
  const wanted = words.replace(/^project\s*/, "");
  const jobs = [projects(wanted)];
  if (project && !words.startsWith("project") && wanted.length > 1) {
    jobs.push(objects(project, wanted));
    if (/[\p{L}\p{N}]/u.test(wanted)) jobs.push(calls(project, wanted));
  }
  const results = await Promise.allSettled(jobs);
  return { found: results.flatMap((result) => (result.status === "fulfilled" ? result.value : [])),
    problem: results.map((result) => (result.status === "rejected" ? result.reason.message : "")).find(Boolean) ?? "" };
}

async function projects(words) {
  const { projects: all } = await get("/_ui/api/projects");
  return all.filter(({ id }) => matches(id, words)).slice(0, 12)
    .map(({ id }) => ({ text: id, note: "Project", href: link("", {}, id) }));
}

async function objects(project, words) {
  const { objs } = await post("/objs/query", { project_id: project, filter: { latest_only: true }, metadata_only: true,
    limit: 500 });
  return objs.filter(({ object_id: name }) => matches(name, words)).slice(0, 20).map((found) => {
    const room = found.kind === "op" ? "ops" : "objects";
    return { text: nameOf(found.object_id), note: found.kind === "op" ? "Op" : found.base_object_class ?? "Object",
      href: link(`/${room}${path`/${found.object_id}/versions/${found.digest}`}`, {}, project) };
  });
}

/** The newest calls that hold a text, and the way to all of them. */
async function calls(project, text) {
  const { rows } = await post("/_ui/api/calls", { project_id: project, filter: { trace_roots_only: false },
    query: { $expr: { $search: { text } } }, limit: MOST_CALLS });
  const found = (rows.id ?? []).map((id, index) => ({ text: rows.name?.[index] ?? rows.op[index], parts: rows.hit?.[index]?.parts,
    note: id, href: link(path`/traces/${rows.trace[index]}`, { call: id }, project) }));
  const all = { text: `Calls with “${text}”`, note: "All of them", href: link("/traces", { search: text, roots: "0" }, project) };
  return found.length ? [...found, all] : [];
}
