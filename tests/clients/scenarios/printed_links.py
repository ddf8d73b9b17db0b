"""The addresses that the SDK prints for people: of the project, calls, ops, objects, leaderboards, views, threads."""

import logging
import re

import weave
from common import PROJECT, report
from weave.flow import leaderboard
from weave.trace import urls

printed: list[str] = []


class Keep(logging.Handler):
    """Keeps every address in what is logged."""

    def emit(self, record: logging.LogRecord) -> None:
        printed.extend(re.findall(r"https?://\S+", record.getMessage()))


logging.getLogger("weave").addHandler(Keep())
logging.getLogger("weave").setLevel(logging.INFO)
client = weave.init(PROJECT)


@weave.op
def answer_question(question: str) -> str:
    """A call whose link is printed."""
    return question.upper()


with weave.thread("talk about a/b"):
    _, call = answer_question.call("why")
dataset = weave.publish(weave.Dataset(name="questions", rows=[{"question": "why"}]), "questions")
prompt = weave.publish(weave.StringPrompt("Answer {question}"), "my prompt")
op = weave.publish(answer_question)
column = leaderboard.LeaderboardColumn(
    evaluation_object_ref=dataset.uri(), scorer_name="right", summary_metric_path="mean"
)
board = weave.publish(leaderboard.Leaderboard(name="board", description="", columns=[column]), "board")
view = weave.SavedView(label="Mine")
view.add_column("inputs.question", "Question")
view.save()
client.flush()

entity, project = PROJECT.split("/")
report(
    printed=printed,
    project=urls.project_weave_root_url(entity, project),
    call=call.ui_url,
    call_id=call.id,
    op=urls.op_version_path(entity, project, op.name, op.digest),
    dataset=urls.object_version_path(entity, project, dataset.name, dataset.digest),
    prompt=urls.object_version_path(entity, project, prompt.name, prompt.digest),
    board=urls.leaderboard_path(entity, project, board.name),
    conversation=urls.agent_conversation_path(entity, project, "talk about a/b"),
    view=view.ui_url(),
)
