"""`docs/compatibility.md` is what the last run of `make test-clients` wrote, of the clients of the table."""

from tests.clients.compatibility.page import PAGE, Result, render, stored_results
from tests.clients.compatibility.table import CLIENTS


def test_the_page_and_the_table_agree() -> None:
    """Every client of the table was tried, no other one is listed, and nobody edited the page."""
    results = stored_results()
    assert list(results) == [client.id for client in CLIENTS]
    assert PAGE.read_text(encoding="utf-8") == render(results)


def test_what_a_row_tells() -> None:
    """Versions, what works, what does not and why, or why it was not tried."""
    tried, other = CLIENTS[:2]
    results = {
        tried.id: Result({"one": "1.0", "two": "2.0"}, "Python 3.12.1", ["tree", "cost"], {"user": "has none | yet"}),
        other.id: Result(skipped="needs Python 3.14"),
    }
    rows = [line for line in render(results).splitlines() if line.startswith(f"| {tried.name} |")]
    assert rows == [f"| {tried.name} | `one` 1.0, `two` 2.0 | tree, cost | **user**: has none \\| yet |"]
    assert f"| {other.name} | – | – | not tried: needs Python 3.14 |" in render(results)


def test_the_table_is_sound() -> None:
    """Ids are distinct, and limits name aspects that are expected."""
    assert len({client.id for client in CLIENTS}) == len(CLIENTS)
    for client in CLIENTS:
        assert set(client.limits) <= set(client.expected), client.id
