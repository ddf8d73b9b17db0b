"""What happens too often for a row each is counted, and no count is lost."""

import pytest

from heddle.store.control.audit import Tally


def test_beyond_so_many_kinds_what_others_do_is_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tally, "MOST_KINDS", 2)
    tally = Tally()
    assert tally.take(is_end=True) == []
    for user in ("ada", "bob", "eve", "ada", "mallory"):
        tally.count("request.refused", user, "calls")
    assert tally.take() == []
    rows = [(row.action, row.user, row.details["what"], row.details["count"]) for row in tally.take(is_end=True)]
    assert rows == [
        ("request.refused", "ada", "calls", 2),
        ("request.refused", "bob", "calls", 1),
        ("request.refused", "", "others", 2),
    ]
    assert tally.take(is_end=True) == []
