// One leaderboard: models in the order of a metric, each value a way to its run.
import { computed, h, untrack } from "../lib/dom.js";
import { postProject, resource } from "../lib/data.js";
import { attempt, confirm, menu } from "../lib/dialog.js";
import { ago, exact, int, plural } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, header, loaded, timeNode, title } from "../lib/parts.js";
import { go, link, query, setQuery } from "../lib/router.js";
import { shareBar } from "../lib/chart.js";
import { columnLabel, loadLeaderboards, loadStanding } from "../lib/leaderboard.js";
import { runLink, versionText } from "../lib/runs.js";
import { table } from "../lib/table.js";
import { editLeaderboard } from "./leaderboard_edit.js";

/** The page of a leaderboard. */
export default function Leaderboard({ name }) {
  title(name);
  const state = resource(
    () => ({ name }),
    async (_, abort) => {
      const board = (await loadLeaderboards(abort)).find((entry) => entry.name === name);
      return board ? { board, rows: await loadStanding(board.columns, abort) } : { board: null, rows: [] };
    },
  );
  const board = () => state.data.value?.board;
  return h(
    "div.page",
    () =>
      header({
        crumbs: [["Leaderboards", link("/leaderboards")]],
        title: h("span", { dir: "auto" }, board()?.label || name),
        extra: board() ? h("span.faint", versionText(board().version)) : null,
        actions: board() ? actions(board(), state) : null,
      }),
    loaded(state, (data) =>
      data.board
        ? untrack(() => standing(data))
        : empty({
            title: "Leaderboard not found",
            action: h("a.button", { href: link("/leaderboards") }, "All leaderboards"),
          }),
    ),
  );
}

function actions(board, state) {
  const remove = async () => {
    if (!(await confirm("Delete this leaderboard?", "All versions will be deleted. Runs are kept. This cannot be undone."))) return;
    const done = await attempt(() => postProject("/obj/delete", { object_id: board.name }), "Leaderboard deleted");
    if (done) go(link("/leaderboards"));
  };
  return [
    button(
      "Edit",
      async () => {
        if (await editLeaderboard(board)) state.reload();
      },
      { iconName: "edit", needs: "write" },
    ),
    menu(null, [["Delete", remove, { iconName: "trash", danger: true, needs: "delete" }]], { label: "More" }),
  ];
}

const newest = (row, index) => row.cells[index]?.[0]?.value ?? null;

function standing({ board, rows }) {
  if (!rows.length)
    return empty({
      title: "No models ranked yet",
      text: "Models appear once a run of one of the evaluations has finished.",
      action: h("a.button.primary", { href: link("/evaluations") }, "Evaluations"),
    });
  const order = computed(() => {
    const at = Number(query("sort") ?? 0);
    const byName = query("sort") === "model";
    return {
      key: query("sort") ?? "0",
      index: at,
      byName,
      descending: query("up") ? query("up") !== "1" : byName ? false : !board.columns[at]?.isLess,
    };
  });
  const sort = (key) =>
    setQuery({ sort: key === "0" ? null : key, up: order.value.key === key ? (order.value.descending ? "1" : "0") : null });
  const ranked = computed(() => {
    const { index, byName, descending } = order.value;
    const sign = descending ? -1 : 1;
    const compare = (one, other) => {
      if (byName) return one.model.name.localeCompare(other.model.name) * sign;
      const [a, b] = [newest(one, index), newest(other, index)];
      return a === null || b === null ? Number(a === null) - Number(b === null) : (a - b) * sign;
    };
    return [...rows].sort(compare).map((row, place) => ({ ...row, rank: place + 1 }));
  });
  return [
    board.text && h("p.boardtext", { dir: "auto" }, board.text),
    h(
      "div.bar-of-tools",
      h(
        "span.dim",
        `${plural(rows.length, "model")}, ${plural(board.columns.length, "metric")}; the latest run of each counts`,
      ),
      h("span.grow"),
      button("Compare the best", () => compareBest(ranked.value, order.value.index), {
        iconName: "chart",
        disabled: rows.length < 2,
      }),
    ),
    h(
      "div.tablebox",
      { tabindex: 0, role: "region", "aria-label": "Ranking" },
      table({
        label: "Ranking",
        columns: () => columns(board, rows),
        rows: () => ranked.value,
        key: (row) => `${row.key} ${row.rank}`,
        order: () => order.value,
        onsort: sort,
        href: (row) => runLink(row.runs[0].id),
      }),
    ),
  ];
}

function compareBest(ranked, index) {
  const ids = ranked.slice(0, 4).map((row) => row.cells[index]?.[0]?.run.id ?? row.runs[0].id);
  go(link("/evaluations/compare", { runs: [...new Set(ids)].join(",") }));
}

function columns(board, rows) {
  return [
    {
      key: "rank",
      label: "Rank",
      number: true,
      width: "64px",
      render: (row) => h("span.rank", { class: row.rank === 1 ? "first" : "" }, row.rank),
    },
    {
      key: "model",
      label: "Model",
      sort: true,
      render: (row) => [
        h("a", { href: runLink(row.runs[0].id), title: row.model.ref, dir: "auto" }, row.model.name),
        " ",
        h("span.faint", versionText(row.model.version)),
      ],
    },
    ...board.columns.map((column, index) => metricColumn(column, index, rows)),
    { key: "runs", label: "Runs", number: true, render: (row) => int(row.runs.length) },
    {
      key: "last",
      label: "Last run",
      number: true,
      render: (row) => timeNode(row.runs[0].started, ago),
    },
  ];
}

function metricColumn(column, index, rows) {
  const label = columnLabel(column);
  const values = rows.map((row) => newest(row, index)).filter((value) => value !== null);
  const best = column.isLess ? Math.min(...values) : Math.max(...values);
  const most = values.every((value) => value >= 0 && value <= 1) ? 1 : Math.max(...values.map(Math.abs)) || 1;
  return {
    key: String(index),
    sort: true,
    number: true,
    title: `${column.scorer}.${column.path}${column.isLess ? ", lower is better" : ""}\n${column.evaluation}`,
    label: h(
      "span.measure",
      h("small", label.small),
      h("span", label.text, column.isLess && " ↓"),
    ),
    render: (row) => cell(row.cells[index], best, most),
  };
}

function cell(entries, best, most) {
  if (!entries?.length) return h("span.faint", "–");
  const [{ run, value }] = entries;
  const text = String(Number(value.toPrecision(4)));
  const title = `${text}, ${exact(run.started)}${
    entries.length > 1
      ? `\n${plural(entries.length, "run")}: ${entries
          .slice(0, 6)
          .map((entry) => Number(entry.value.toPrecision(3)))
          .join(", ")}`
      : ""
  }`;
  return h(
    "span.boardcell",
    { title },
    h(
      "a",
      { href: runLink(run.id), class: value === best ? "best" : "" },
      shareBar(Math.abs(value) / most, text, value === best ? undefined : "var(--line-strong)"),
    ),
  );
}
