"""`heddle top`: what a running server does, from two looks at its /metrics."""

import itertools
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from heddle.errors import HeddleError
from heddle.remote import Remote
from heddle.setting_kinds import GIB, KIB, MIB

_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K\n", "\x1b[J"
_NOTHING = "-"
_GROUPS = 8
_BACKUP = "heddle_backup_timestamp_seconds"


@dataclass(frozen=True, slots=True)
class Look:
    """The samples of one moment."""

    at: float
    samples: list[tuple[str, dict[str, str], float]]

    @classmethod
    def take(cls, remote: Remote) -> "Look":
        """Look now; raises HeddleError."""
        text = remote.text("/metrics")
        try:
            families = list(text_string_to_metric_families(text))
        except ValueError:
            families = []
        samples = [(one.name, one.labels, one.value) for family in families for one in family.samples]
        if not any(name == "heddle_build_info" for name, _, _ in samples):
            raise HeddleError(f"{remote.server}/metrics has no heddle metrics; check that it is a heddle server")
        return cls(time.monotonic(), samples)

    def find(self, name: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """The samples of a name that have these labels."""
        wanted = labels.items()
        return ((found, value) for one, found, value in self.samples if one == name and wanted <= found.items())

    def sum(self, name: str, **labels: str) -> float:
        """Their sum."""
        return math.fsum(value for _, value in self.find(name, **labels))

    def values(self, name: str, label: str) -> list[str]:
        """The values that a label has."""
        return list(dict.fromkeys(found[label] for found, _ in self.find(name)))


@dataclass(frozen=True, slots=True)
class Change:
    """Two looks, and what happened between them."""

    before: Look
    now: Look
    seconds: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "seconds", max(1e-3, self.now.at - self.before.at))

    def rate(self, name: str, **labels: str) -> float:
        """Increase per second; a server that was started anew counts from zero."""
        before, now = self.before.sum(name, **labels), self.now.sum(name, **labels)
        return (now - before if now >= before else now) / self.seconds

    def quantile(self, share: float, name: str, **labels: str) -> float | None:
        """A quantile of what a histogram took meanwhile, by its buckets; None when that is nothing."""
        grown: dict[float, float] = {}
        for look, sign in ((self.now, 1.0), (self.before, -1.0)):
            for found, value in look.find(f"{name}_bucket", **labels):
                grown[float(found["le"])] = grown.get(float(found["le"]), 0.0) + sign * value
        bounds = sorted(grown)
        if not bounds or grown[bounds[-1]] <= 0:
            return None
        target, low, below = share * grown[bounds[-1]], 0.0, 0.0
        for bound in bounds:
            if grown[bound] >= target and grown[bound] > below:
                return low if math.isinf(bound) else low + (bound - low) * (target - below) / (grown[bound] - below)
            low, below = bound, grown[bound]
        return None


def describe(change: Change, server: str) -> list[tuple[str, str]]:
    """What a server does: the name of each part, and its figures."""
    now = change.now
    (build, _) = next(now.find("heddle_build_info"))
    up = _duration(time.time() - now.sum("process_start_time_seconds"))
    rows = [(f"heddle {build['version']}", f"{server}, up {up}, the last {_duration(change.seconds)}")]
    rows += [*_requests(change), *_ingest(change), *_disk(now), *_jobs(change), *_engines(change), *_training(change)]
    memory, lag = now.sum("process_resident_memory_bytes"), change.quantile(0.99, "heddle_event_loop_lag_seconds")
    cores = change.rate("process_cpu_seconds_total")
    rows.append(("server", f"cpu {100 * cores:.0f} %, memory {_size(memory)}, event loop lag p99 {_duration(lag)}"))
    return rows


def _requests(change: Change) -> Iterator[tuple[str, str]]:
    counted, timed = "heddle_http_requests_total", "heddle_http_request_duration_seconds"
    statuses = {status: change.rate(counted, status=status) for status in change.now.values(counted, "status")}
    refused, failed = (sum(rate for status, rate in statuses.items() if status[0] == kind) for kind in "45")
    rates = f"{_rate(change.rate(counted))}, refused {_rate(refused)}, failed {_rate(failed)}"
    yield "requests", f"{rates}, at a limit {_rate(change.rate('heddle_refused_total'))}"
    groups = {group: change.rate(counted, group=group) for group in change.now.values(counted, "group")}
    for group, rate in sorted(groups.items(), key=lambda pair: -pair[1])[:_GROUPS]:
        if rate > 0:
            p50, p95 = (change.quantile(share, timed, group=group) for share in (0.5, 0.95))
            yield f"  {group}", f"{_rate(rate)}, p50 {_duration(p50)}, p95 {_duration(p95)}"


def _ingest(change: Change) -> Iterator[tuple[str, str]]:
    stored, lost = (change.rate(f"heddle_otlp_{word}_total") for word in ("stored", "rejected"))
    commits, seconds = (change.rate(f"heddle_store_commit{word}_total") for word in ("s", "_seconds"))
    written = _size(change.rate("heddle_store_written_bytes_total"))
    calls = _rate(change.rate("heddle_calls_stored_total"))
    yield "ingest", f"calls {calls}, OpenTelemetry {_rate(stored)}, rejected {_rate(lost)}, {written}/s"
    mean = _duration(seconds / commits if commits else None)
    waiting, limit = (change.now.sum(f"heddle_store_queue_{word}bytes") for word in ("", "limit_"))
    yield "queue", f"{_size(waiting)} of {_size(limit)} waiting, {_rate(commits)} commits of {mean}"


def _disk(now: Look) -> Iterator[tuple[str, str]]:
    parts = [f"{found['part'].replace('_', ' ')} {_size(size)}" for found, size in now.find("heddle_disk_used_bytes")]
    free, disk = now.sum("heddle_disk_free_bytes"), now.sum("heddle_disk_size_bytes")
    yield "disk", ", ".join([*parts, f"free {_size(free)} of {_size(disk)}"])
    ages = [f"{found['outcome']} {_duration(time.time() - at)} ago" for found, at in now.find(_BACKUP)]
    yield "backup", ", ".join(ages or ["none yet"])


def _jobs(change: Change) -> Iterator[tuple[str, str]]:
    jobs = [f"{found['kind']} {count:.0f} {found['state']}" for found, count in change.now.find("heddle_jobs")]
    calls, messages = (change.now.sum(f"heddle_{word}_waiting") for word in ("monitor_calls", "alert_messages"))
    yield "jobs", ", ".join(jobs or ["none open"])
    firing = change.now.sum("heddle_alert_rules", state="firing")
    yield "waiting", f"calls for monitors {calls:.0f}, alert messages {messages:.0f}; alerts firing {firing:.0f}"


def _engines(change: Change) -> Iterator[tuple[str, str]]:
    now = change.now
    for model in now.values("heddle_engine_ready", "model"):
        if not now.sum("heddle_engine_ready", model=model):
            yield "engine", f"{model} is not loaded"
            continue
        running, waiting = (now.sum(f"heddle_engine_{word}", model=model) for word in ("running", "waiting"))
        taken, made = (change.rate(f"heddle_engine_{word}_tokens_total", model=model) for word in _TOKENS)
        blocks, used = (now.sum(f"heddle_engine_kv_blocks{word}", model=model) for word in ("", "_used"))
        first = change.quantile(0.95, "heddle_inference_first_token_seconds", model=model)
        tokens = f"tokens in {_rate(taken)}, out {_rate(made)}, first token p95 {_duration(first)}"
        share = f"KV cache {100 * used / blocks if blocks else 0:.0f} %"
        yield "engine", f"{model}: {running:.0f} running, {waiting:.0f} waiting, {tokens}, {share}"


_TOKENS = ("prompt", "generated")


def _training(change: Change) -> Iterator[tuple[str, str]]:
    if not change.now.sum("heddle_training_steps_total"):
        return
    steps = change.rate("heddle_training_steps_total")
    ratio, norm = (change.now.sum(f"heddle_training_{word}") for word in ("ratio_mean", "grad_norm"))
    yield "training", f"steps {_rate(steps)}; last step: importance ratio {ratio:.3f}, gradient norm {norm:.3g}"


def _rate(value: float) -> str:
    return f"{value:,.0f}/s" if value >= 100 else f"{value:.1f}/s"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    if seconds < 10:
        return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _size(size: float) -> str:
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size:.0f} B"


def run(server: str | None, key: str | None, interval: float, once: bool) -> None:
    """Show what a server does, each `interval` seconds (or once); raises HeddleError when it does not answer at first.

    Where standard output is no terminal, what is shown is written one below the other.
    """
    remote = Remote(server, key)
    before = Look.take(remote)
    is_terminal = sys.stdout.isatty() and not once
    try:
        for number in itertools.count():
            time.sleep(interval)
            try:
                now = Look.take(remote)
                rows, before = describe(Change(before, now), remote.server), now
            except HeddleError as error:
                if once:
                    raise
                rows = [("", str(error))]
            _show(rows, is_terminal, number)
            if once:
                return
    except KeyboardInterrupt:
        return
    except BrokenPipeError:
        # Python would say so again when it closes what nobody reads.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show(rows: list[tuple[str, str]], is_terminal: bool, number: int) -> None:
    indent = max(len(name) for name, _ in rows) + 2
    width = max(40, shutil.get_terminal_size().columns - indent) if is_terminal else 10_000
    lines = []
    for name, text in rows:
        first, *others = textwrap.wrap(text, width)
        lines += [f"{name:<{indent}}{first}", *(" " * indent + other for other in others)]
    if is_terminal:
        sys.stdout.write(_HOME + "".join(line + _END_OF_LINE for line in lines) + _REST)
    else:
        sys.stdout.write(("\n" if number else "") + "\n".join(lines) + "\n")
    sys.stdout.flush()
