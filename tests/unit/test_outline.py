"""A trace as the position of each call's parent: parents that come later, are elsewhere, or are the call itself."""

from heddle.wire.outline import ORPHAN, ROOT, Head, Outline


def test_parents_have_positions_whatever_order_calls_come_in() -> None:
    heads: list[Head] = [
        (5, "child", "root", 7, 10),
        (7, "root", None, None, 11),
        (8, "orphan", "gone", None, 12),
        (9, "of another trace", "elsewhere", 99, 13),
        (6, "itself", "itself", 6, 14),
        (4, "grandchild", "child", 5, 14),
    ]
    outline = Outline("team/project", "trace", total=6, ended=2)
    outline.fill(iter(heads), "orphan")
    assert [*outline.rids] == [5, 7, 8, 9, 6, 4]
    assert [*outline.starts] == [10, 11, 12, 13, 14, 14]
    assert [*outline.parents] == [1, ROOT, ORPHAN, ORPHAN, ORPHAN, 0]
    assert outline.orphans == {2: "gone", 3: "elsewhere", 4: "itself"}
    assert (outline.selected, outline.version) == (2, "6.2")


def test_nothing_is_selected_without_a_call_of_that_id() -> None:
    for selected in (None, "b"):
        outline = Outline("team/project", "trace")
        outline.fill([(1, "a", None, None, 0)], selected)
        assert outline.selected == -1
