// All leaderboards of the project.
import { h } from "../lib/dom.js";
import { resource } from "../lib/data.js";
import { ago, cut, nameOf } from "../lib/format.js";
import { empty } from "../lib/panels.js";
import { button, header, loaded, timeNode, title } from "../lib/parts.js";
import { go, link, path, projectId } from "../lib/router.js";
import { columnLabel, loadLeaderboards } from "../lib/leaderboard.js";
import { table } from "../lib/table.js";
import { editLeaderboard } from "./leaderboard_edit.js";

/** The list of leaderboards. */
export default function Leaderboards() {
  title("Leaderboards");
  const state = resource(
    () => ({}),
    (_, abort) => loadLeaderboards(abort),
  );
  const create = async () => {
    const made = await editLeaderboard(null);
    if (made) go(link(path`/leaderboards/${made}`));
  };
  return h(
    "div.page",
    header({
      title: "Leaderboards",
      extra: () => (state.data.value?.length ? h("span.count", state.data.value.length) : null),
      actions: button("New leaderboard", create, { kind: "primary", iconName: "add", needs: "write" }),
    }),
    loaded(state, (boards) =>
      boards.length
        ? list(boards)
        : h("div.scroll", { tabindex: 0, role: "region", "aria-label": "Content" }, empty(teaching(create))),
    ),
  );
}

const evaluationsOf = (board) => [...new Set(board.columns.map((column) => nameOf(column.evaluation)))];

function list(boards) {
  const columns = [
    {
      key: "name",
      label: "Name",
      render: (board) =>
        h("a", { href: link(path`/leaderboards/${board.name}`), dir: "auto", title: board.name }, board.label || board.name),
    },
    {
      key: "text",
      label: "Description",
      render: (board) => h("span.dim", { title: board.text, dir: "auto" }, cut(board.text, 120)),
    },
    {
      key: "evaluations",
      label: "Evaluations",
      render: (board) => h("span", { title: evaluationsOf(board).join("\n") }, cut(evaluationsOf(board).join(", "), 60)),
    },
    {
      key: "metrics",
      label: "Metrics",
      number: true,
      render: (board) =>
        h("span", { title: board.columns.map((column) => columnLabel(column).text).join("\n") }, board.columns.length),
    },
    { key: "version", label: "Version", number: true, render: (board) => `v${board.version}` },
    {
      key: "created",
      label: "Changed",
      number: true,
      render: (board) => timeNode(board.created, ago),
    },
  ];
  return h(
    "div.tablebox",
    { tabindex: 0, role: "region", "aria-label": "Leaderboards" },
    table({
      label: "Leaderboards",
      columns: () => columns,
      rows: () => boards,
      key: (board) => board.name,
      href: (board) => link(path`/leaderboards/${board.name}`),
    }),
  );
}

const teaching = (create) => ({
  title: "Rank models by what you measure",
  text: "A leaderboard ranks the models of one or more evaluations. Choose the metrics here, or publish one from a program:",
  code: [
    "import weave",
    "from weave.flow import leaderboard",
    `weave.init("${projectId()}")  # WANDB_BASE_URL=${location.origin}`,
    "column = leaderboard.LeaderboardColumn(",
    '    evaluation_object_ref=weave.ref("EVALUATION").uri(),',
    '    scorer_name="SCORER",',
    '    summary_metric_path="correct.true_fraction",',
    ")",
    'weave.publish(leaderboard.Leaderboard(name="best-answers", columns=[column]))',
  ].join("\n"),
  action: button("New leaderboard", create, { kind: "primary", iconName: "add", needs: "write" }),
});
