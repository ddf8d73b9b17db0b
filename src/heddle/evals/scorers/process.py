"""The process in which patterns and schemas are read, and patterns, schemas and long texts scored."""

from heddle.evals.scorers.kinds import KINDS, CannotScore
from heddle.ipc.bounded import answer_jobs
from heddle.wire.jsontypes import Json


def _answer(job: Json) -> Json:
    kind = KINDS[job["kind"]]
    try:
        if "output" not in job:
            return {"problem": kind.problem(job["settings"])}
        return {"score": kind.score(job["output"], job["target"], job["settings"])}
    except CannotScore as error:
        return {"error": str(error)}
    except (RecursionError, MemoryError):
        return {"error": "the work is too large"}


if __name__ == "__main__":
    answer_jobs(_answer)
