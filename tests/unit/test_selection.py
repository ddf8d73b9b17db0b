"""What `make test` leaves out."""

from tests.support import selection


def test_cases_beside_the_kept_ones_are_thorough() -> None:
    cases = selection.with_breadth([("a", 1), ("b", 2), ("c", 3)], every=2, are_named=True)
    assert [(case.id, case.values, bool(case.marks)) for case in cases] == [
        ("a", (1,), False),
        ("b", (2,), True),
        ("c", (3,), False),
    ]
