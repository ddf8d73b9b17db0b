"""Lines of the log."""

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from heddle.logs import configure_logs, read_record


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The log of the tests as it was."""
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:] = before
    root.setLevel(level)


def written(form: str) -> str:
    """What one record with a field of its own and a traceback comes to."""
    out = io.StringIO()
    configure_logs("info", form, out)
    logger = logging.getLogger("heddle.some")
    logger.debug("left out")
    try:
        raise ValueError("why")
    except ValueError:
        logger.warning("%s\nfailed", "it", extra={"request_id": "r1"}, exc_info=sys.exc_info())
    return out.getvalue()


def test_lines_for_people_are_in_utc() -> None:
    first, *rest = written("text").splitlines()
    assert first.split(" ", 1)[0].endswith("Z") and first.endswith("WARNING heddle.some: it")
    assert rest[-1] == "ValueError: why"


def test_a_json_line_is_an_object_and_becomes_a_record_again() -> None:
    (line,) = written("json").splitlines()
    told = json.loads(line)
    assert (told["level"], told["logger"], told["request_id"]) == ("warning", "heddle.some", "r1")
    assert told["message"] == "it\nfailed" and told["time"].endswith("Z") and "ValueError: why" in told["exception"]
    record = read_record(line)
    assert record is not None and (record.level, record.logger, record.extra) == (
        30,
        "heddle.some",
        {"request_id": "r1"},
    )
    assert record.text.startswith("it\nfailed\nTraceback")


@pytest.mark.parametrize("line", ["a plain line", "[1]", "{}", '{"level": 3, "logger": "a", "message": "b"}', "1"])
def test_a_line_of_something_else_is_no_record(line: str) -> None:
    assert read_record(line) is None
