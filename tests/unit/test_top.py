"""`heddle top`: rates and quantiles between two looks, and the lines that come of them."""

import pytest

from heddle.top import Change, Look, describe

TIMED = "heddle_http_request_duration_seconds_bucket"


def look(at: float, *samples: tuple[str, float]) -> Look:
    """A look with samples such as `name{label=value}`."""
    found = []
    for written, value in (("heddle_build_info{version=1.2}", 1.0), *samples):
        name, _, labels = written.rstrip("}").partition("{")
        found.append((name, dict(pair.split("=") for pair in labels.split(",") if pair), value))
    return Look(at, found)


def test_rates_are_increases_per_second_and_a_new_server_counts_from_zero() -> None:
    change = Change(look(10, ("a{x=1}", 5.0), ("a{x=2}", 7.0)), look(12, ("a{x=1}", 9.0), ("a{x=2}", 8.0)))
    assert (change.rate("a"), change.rate("a", x="1"), change.rate("a", x="3")) == (2.5, 2.0, 0.0)
    assert Change(look(0, ("a", 100.0)), look(2, ("a", 3.0))).rate("a") == 1.5


def test_quantiles_are_of_what_came_between() -> None:
    before = look(0, ("h_bucket{le=1.0}", 50.0), ("h_bucket{le=2.0}", 50.0), ("h_bucket{le=+Inf}", 50.0))
    now = look(1, ("h_bucket{le=1.0}", 50.0), ("h_bucket{le=2.0}", 60.0), ("h_bucket{le=+Inf}", 60.0))
    assert Change(before, now).quantile(0.5, "h") == pytest.approx(1.5)
    assert Change(before, before).quantile(0.5, "h") is None and Change(before, now).quantile(0.5, "other") is None
    far = look(1, ("h_bucket{le=1.0}", 50.0), ("h_bucket{le=2.0}", 50.0), ("h_bucket{le=+Inf}", 51.0))
    assert Change(before, far).quantile(0.99, "h") == 2.0, "no more is known than that it is beyond the last bound"


def test_every_part_has_its_line() -> None:
    before = look(0, ("heddle_http_requests_total{group=calls,status=200}", 0.0), ("heddle_engine_ready{model=m}", 1.0))
    now = look(
        2,
        ("heddle_http_requests_total{group=calls,status=200}", 500.0),
        ("heddle_http_requests_total{group=calls,status=429}", 2.0),
        ("heddle_jobs{kind=replay,state=running}", 1.0),
        ("heddle_engine_ready{model=m}", 1.0),
        ("heddle_engine_generated_tokens_total{model=m}", 50.0),
        ("heddle_engine_kv_blocks{model=m}", 8.0),
        ("heddle_engine_kv_blocks_used{model=m}", 2.0),
        ("heddle_training_steps_total", 4.0),
        ("heddle_disk_used_bytes{part=write_ahead_log}", 3 * 1024.0),
    )
    rows = dict(describe(Change(before, now), "http://server"))
    assert rows["requests"] == "251/s, refused 1.0/s, failed 0.0/s, at a limit 0.0/s"
    assert rows["  calls"] == "251/s, p50 -, p95 -"
    assert rows["jobs"] == "replay 1 running" and rows["disk"].startswith("write ahead log 3.0 KiB, free 0 B")
    assert "out 25.0/s" in rows["engine"] and rows["engine"].endswith("KV cache 25 %")
    assert rows["training"].startswith("steps 2.0/s") and rows["backup"] == "none yet"
