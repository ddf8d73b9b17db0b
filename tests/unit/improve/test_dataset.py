"""Which rows are held out, which chats a step gets, and what a call's scores are."""

from collections import Counter

from heddle.improve.dataset import _score_of, split_rows
from heddle.improve.rollouts import _choose_rows
from heddle.wire.records import Call

KEYS = [f"chat {number}" for number in range(40)]


def test_a_split_follows_from_the_seed_and_the_content() -> None:
    train, held = split_rows(KEYS, 0.3, 7)
    assert sorted([*train, *held]) == list(range(40)) and len(held) == 12
    assert split_rows(KEYS, 0.3, 7) == (train, held) != split_rows(KEYS, 0.3, 8)
    turned = split_rows(KEYS[::-1], 0.3, 7)
    assert {KEYS[::-1][place] for place in turned[1]} == {KEYS[place] for place in held}


def test_each_part_has_a_row() -> None:
    for share in (0.001, 0.5, 0.999):
        train, held = split_rows(KEYS[:4], share, 0)
        assert train and held


def test_each_chat_comes_once_before_one_comes_again() -> None:
    chosen = [_choose_rows(10, 4, 3, number) for number in range(1, 6)]
    counts = Counter(place for step in chosen for place in step)
    assert sum(counts.values()) >= 18 and max(counts.values()) - min(counts.values()) <= 1
    assert all(len(set(step)) == len(step) for step in chosen)
    assert sorted(_choose_rows(3, 8, 0, 1)) == [0, 1, 2]


def test_the_newest_score_of_each_scorer_counts() -> None:
    def item(kind: str, output: object, at: str, trigger: str | None) -> dict[str, object]:
        named = {"feedback_type": f"wandb.runnable.{kind}", "created_at": at, "trigger_ref": trigger}
        return {**named, "payload": {"output": output}}

    ours = "weave-trace-internal:///p/object/monitor:d1"
    feedback = [
        item("a", {"ok": True}, "2", ours),
        item("a", {"ok": False}, "1", ours),
        item("b", 0.5, "1", "weave-trace-internal:///p/object/monitor2:d1"),
        item("c", "text", "1", ours),
    ]
    call = Call(id="c", trace_id="c", op_name="o", started_at="", summary={"weave": {"feedback": feedback}})
    assert _score_of(call, "weave-trace-internal:///p/object/monitor:", None) == 1.0
    assert _score_of(call, None, None) == 0.75 and _score_of(call, None, "b") == 0.5
    assert _score_of(call, None, "c") is None
