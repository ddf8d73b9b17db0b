"""The one table of metrics: each row is a family of /metrics, a line of the manual, and its panels and alerts.

`python -m tools.monitoring` makes the dashboard and the alert rules of `deploy/` from it. In a query METRIC stands for
the row's own name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_REQUESTS = (*_FAST, 30.0)
_COMPLETIONS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_JOBS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
INTERVAL = "$__rate_interval"
LOWEST_CORRELATION = 0.98
"""Below this, the probabilities of training and of serving are not those of one policy."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A query of the dashboard; those of one section and title share a panel. `unit` is Grafana's name of it."""

    section: str
    title: str
    unit: str
    query: str
    legend: str


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule of alerting: it fires once its expression has held for so many minutes."""

    name: str
    expression: str
    minutes: int
    summary: str
    severity: str = "warning"


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One family; `help` is a sentence."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in the unit of the name."""
    panels: tuple[Panel, ...] = ()
    alerts: tuple[Alert, ...] = ()


def _legend(by: tuple[str, ...], legend: str) -> str:
    return legend or " ".join(f"{{{{{label}}}}}" for label in by) or "all"


def _rate(section: str, title: str, unit: str, *by: str, legend: str = "", where: str = "") -> Panel:
    """Increases per second, summed over everything but the labels `by`."""
    query = f"sum by ({', '.join(by)}) (rate(METRIC{where}[{INTERVAL}]))"
    return Panel(section, title, unit, query, _legend(by, legend))


def _now(section: str, title: str, unit: str, *by: str, legend: str = "", over: str = "sum") -> Panel:
    """The value; `over` is max for what every server of several shows alike."""
    return Panel(section, title, unit, f"{over} by ({', '.join(by)}) (METRIC)", _legend(by, legend))


def _quantile(section: str, title: str, *by: str, share: float = 0.95, legend: str = "") -> Panel:
    labels = ", ".join(("le", *by))
    query = f"histogram_quantile({share}, sum by ({labels}) (rate(METRIC_bucket[{INTERVAL}])))"
    return Panel(section, title, "s", query, _legend(by, legend))


def _server_rows() -> Iterator[MetricRow]:
    yield MetricRow(
        "heddle_build_info", GAUGE, "1; the labels are the versions of heddle and Python.", ("version", "python"),
        panels=(Panel("Server", "Versions", "short", "count by (version) (METRIC)", "{{version}}"),),
        alerts=(Alert("HeddleDown", "absent(METRIC)", 2, "No heddle server answers /metrics", "critical"),),
    )  # fmt: skip
    yield MetricRow(
        "process_cpu_seconds_total", COUNTER, "CPU time of the serving process (with --workers: of the writing one).",
        panels=(_rate("Server", "CPU cores used", "short", "instance"),),
    )  # fmt: skip
    yield MetricRow(
        "process_resident_memory_bytes", GAUGE, "Memory of the serving process (with --workers: of the writing one).",
        panels=(_now("Server", "Memory", "bytes", "instance"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_event_loop_lag_seconds", HISTOGRAM,
        "Delay of the event loops of all processes, sampled 20 times a second.", buckets=_FAST,
        panels=(_quantile("Server", "Event loop lag (p99)", "instance", share=0.99),),
        alerts=(
            Alert(
                "HeddleEventLoopSlow",
                "histogram_quantile(0.99, sum by (le, instance) (rate(METRIC_bucket[5m]))) > 0.25", 10,
                "The event loop of {{ $labels.instance }} is more than 250 ms late",
            ),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_bounded_processes_total", COUNTER,
        "Child processes started for input of clients: grammars, schemas, patterns, templates, images.",
        panels=(_rate("Server", "Client-supplied programs", "ops", legend="processes started"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_bounded_refusals_total", COUNTER,
        "Inputs of clients rejected because they ran out of time or memory in such a process.",
        panels=(_rate("Server", "Client-supplied programs", "ops", legend="inputs rejected"),),
        alerts=(
            Alert("HeddleHarmfulInput", "increase(METRIC[15m]) > 10", 0,
                  "Clients of {{ $labels.instance }} send programs that run out of time or memory"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_exported_spans_total", COUNTER,
        "Spans of the server's own requests (otlp_export_endpoint): sent, dropped because too many waited, or failed.",
        ("outcome",),
        panels=(_rate("Server", "Own spans exported", "ops", "outcome"),),
        alerts=(
            Alert("HeddleSpansLost", 'increase(METRIC{outcome!="sent"}[15m]) > 0', 15,
                  "Spans of {{ $labels.instance }} do not reach otlp_export_endpoint ({{ $labels.outcome }})"),
        ),
    )  # fmt: skip


def _http_rows() -> Iterator[MetricRow]:
    yield MetricRow(
        "heddle_http_requests_total", COUNTER, "Requests answered; 499: the client disconnected before the answer.",
        ("group", "route", "method", "status"),
        panels=(
            _rate("Requests", "Requests per second", "reqps", "group"),
            _rate("Requests", "Refused and failed per second", "reqps", "status", where='{status=~"[45].."}'),
        ),
        alerts=(
            Alert("HeddleServerErrors",
                  'sum by (instance) (rate(METRIC{status=~"50[02-6]"}[5m])) / sum by (instance) (rate(METRIC[5m]))'
                  " > 0.02", 5, "More than 2 % of the requests to {{ $labels.instance }} fail", "critical"),
            Alert("HeddleStorageFull", 'sum by (instance) (rate(METRIC{status="507"}[5m])) > 0', 1,
                  "{{ $labels.instance }} refuses writes: the disk or the database is full", "critical"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_http_request_duration_seconds", HISTOGRAM, "Time from the head of a request to the end of its answer.",
        ("group", "status"), _REQUESTS,
        panels=(
            _quantile("Requests", "Duration (p50)", "group", share=0.5),
            _quantile("Requests", "Duration (p95)", "group"),
        ),
    )  # fmt: skip
    for word, verb in (("received", "request"), ("sent", "answer")):
        yield MetricRow(
            f"heddle_http_{word}_bytes_total", COUNTER, f"Bytes of {verb} bodies on the wire.",
            ("group",), panels=(_rate("Requests", "Bytes per second", "Bps", legend=word),),
        )  # fmt: skip
    yield MetricRow(
        "heddle_refused_total", COUNTER, "Requests and connections refused or aborted at a limit, by its setting.",
        ("limit",), panels=(_rate("Requests", "Refused at limits per second", "ops", "limit"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_quota_refused_total", COUNTER, "Requests beyond a quota of a project or key.",
        ("kind", "group", "unit"),
        panels=(_rate("Requests", "Refused by quotas per second", "ops", "kind", "group", "unit"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_quota_used", GAUGE, "Usage of a quota by the project or key that is closest to it.",
        ("kind", "group", "unit", "period"),
        panels=(
            Panel("Requests", "Quotas used", "percentunit",
                  "max by (kind, group, unit, period) (METRIC / heddle_quota_limit)",
                  "{{kind}} {{group}} {{unit}} {{period}}"),
        ),
        alerts=(
            Alert("HeddleQuotaDiskAlmostFull", 'METRIC{unit="disk"} / heddle_quota_limit > 0.9', 10,
                  "A project is close to its disk quota; beyond it, its writes are refused"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_quota_limit", GAUGE, "The quota itself, for the project or key that is closest to it.",
        ("kind", "group", "unit", "period"),
        panels=(_now("Requests", "Most used quota", "short", "kind", "group", "unit", "period", over="max"),),
    )  # fmt: skip


def _ingest_rows() -> Iterator[MetricRow]:
    yield MetricRow(
        "heddle_calls_stored_total", COUNTER, "Calls (including spans) whose start was committed.",
        panels=(_rate("Ingest", "Calls stored per second", "ops", legend="calls"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_otlp_stored_total", COUNTER, "OpenTelemetry spans, log records and data points that were stored.",
        ("signal",), panels=(_rate("Ingest", "OpenTelemetry per second", "ops", "signal"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_otlp_rejected_total", COUNTER,
        "OpenTelemetry spans, log records and data points that were not stored, by cause.", ("signal", "cause"),
        panels=(_rate("Ingest", "OpenTelemetry rejected per second", "ops", "signal", "cause"),),
        alerts=(
            Alert("HeddleTelemetryRejected", "sum by (signal, cause) (increase(METRIC[15m])) > 0", 0,
                  "OpenTelemetry {{ $labels.signal }} were not stored: {{ $labels.cause }}"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_store_commits_total", COUNTER, "Commits; one commit can hold the writes of many requests.",
        panels=(_rate("Ingest", "Commits per second", "ops", legend="commits"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_store_commit_seconds_total", COUNTER, "Time spent in commits.",
        panels=(
            Panel("Ingest", "Time of a commit", "s",
                  f"sum (rate(METRIC[{INTERVAL}])) / sum (rate(heddle_store_commits_total[{INTERVAL}]))", "mean"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_store_writes_total", COUNTER, "Writes in all commits.",
        panels=(_rate("Ingest", "Commits per second", "ops", legend="writes"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_store_written_bytes_total", COUNTER, "Bytes committed, as received.",
        panels=(_rate("Ingest", "Bytes stored per second", "Bps", legend="bytes"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_store_queue_bytes", GAUGE, "Bytes that wait to be written.",
        panels=(_now("Ingest", "Write queue", "bytes", "instance"),),
        alerts=(
            Alert("HeddleWriteQueueFull", "METRIC / heddle_store_queue_limit_bytes > 0.5", 5,
                  "The write queue of {{ $labels.instance }} is more than half full; writers wait when it is full"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_store_queue_limit_bytes", GAUGE, "The setting write_queue_bytes, above which writers get 429.",
        panels=(_now("Ingest", "Write queue", "bytes", legend="limit", over="max"),),
    )  # fmt: skip


def _disk_rows() -> Iterator[MetricRow]:
    yield MetricRow(
        "heddle_disk_used_bytes", GAUGE,
        "The data folder: database, write_ahead_log, files, adapters, training; measured at most once a minute.",
        ("part",), panels=(_now("Disk", "Data folder", "bytes", "part", over="max"),),
        alerts=(
            Alert("HeddleDatabaseAlmostFull",
                  'METRIC{part="database"} / on (instance) (heddle_database_limit_bytes > 0) > 0.9', 10,
                  "The database of {{ $labels.instance }} will soon reach max_database_bytes; writes are refused then"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_database_limit_bytes", GAUGE, "The setting max_database_bytes; 0 is no limit.",
        panels=(_now("Disk", "Data folder", "bytes", legend="limit of the database", over="max"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_disk_free_bytes", GAUGE, "Free bytes on the disk of the data folder.",
        panels=(_now("Disk", "Disk", "bytes", "instance", legend="free {{instance}}"),),
        alerts=(
            Alert("HeddleDiskAlmostFull", "METRIC / heddle_disk_size_bytes < 0.1", 10,
                  "Less than a tenth of the disk of {{ $labels.instance }} is free"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_disk_size_bytes", GAUGE, "Size of the disk of the data folder.",
        panels=(_now("Disk", "Disk", "bytes", "instance", legend="size {{instance}}"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_backup_timestamp_seconds", GAUGE,
        "When `heddle backup` last made a backup (made), verified one (restored), or failed after that (failed).",
        ("outcome",),
        panels=(Panel("Disk", "Age of the last backup", "s", "time() - max by (outcome) (METRIC)", "{{outcome}}"),),
        alerts=(
            Alert("HeddleBackupOld", 'time() - METRIC{outcome="made"} > 172800', 10,
                  "The last backup of {{ $labels.instance }} is more than two days old"),
            Alert("HeddleBackupFailed", 'METRIC{outcome="failed"} > 0', 0,
                  "The last attempt to back up {{ $labels.instance }} failed"),
        ),
    )  # fmt: skip


def _job_rows() -> Iterator[MetricRow]:
    yield MetricRow(
        "heddle_redacted_values_total",
        COUNTER,
        "Values removed from content before it was stored; the same on all servers that share a database.",
        ("kind",),
        panels=(_rate("Ingest", "Values redacted per second", "ops", "kind"),),
    )
    yield MetricRow(
        "heddle_jobs", GAUGE, "Jobs that are not done; the same on all servers that share a database.",
        ("kind", "state"), panels=(_now("Jobs", "Open jobs", "short", "kind", "state", over="max"),),
        alerts=(
            Alert("HeddleJobsWait",
                  'max by (kind) (METRIC{state="queued"}) > 0 unless max by (kind) (METRIC{state="running"}) > 0', 15,
                  "Jobs of the kind {{ $labels.kind }} are waiting, but none is running"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_jobs_ended_total", COUNTER, "Jobs that ended on this server: succeeded, failed or cancelled.",
        ("kind", "state"), panels=(_rate("Jobs", "Jobs ended per second", "ops", "kind", "state"),),
        alerts=(
            Alert("HeddleJobsFail", 'sum by (kind) (increase(METRIC{state="failed"}[30m])) > 3', 0,
                  "Jobs of the kind {{ $labels.kind }} are failing"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_job_duration_seconds", HISTOGRAM, "Time from the start of a job to its end.", ("kind",), _JOBS,
        panels=(_quantile("Jobs", "Duration (p95)", "kind"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_monitor_calls_waiting", GAUGE, "Ended calls that monitors have not processed yet.",
        panels=(_now("Jobs", "Waiting", "short", legend="calls for monitors", over="max"),),
        alerts=(Alert("HeddleMonitorsBehind", "max (METRIC) > 10000", 15, "Monitors cannot keep up with the calls"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_alert_rules", GAUGE, "Enabled alert rules by state: quiet, firing, or problem (cannot be judged).",
        ("state",), panels=(_now("Jobs", "Alert rules", "short", "state", over="max"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_alert_messages_waiting", GAUGE, "Alert messages that have not been delivered yet.",
        panels=(_now("Jobs", "Waiting", "short", legend="alert messages", over="max"),),
        alerts=(
            Alert("HeddleAlertsUndelivered", "max (METRIC) > 0", 60, "Alert messages have been waiting for an hour"),
        ),
    )  # fmt: skip
    yield MetricRow(
        "heddle_alert_messages_total", COUNTER,
        "Attempts to deliver alert messages: delivered, put_off (tried again later), or given_up.", ("outcome",),
        panels=(_rate("Jobs", "Alert messages", "ops", "outcome"),),
    )  # fmt: skip


def _inference_rows() -> Iterator[MetricRow]:
    yield MetricRow(
        "heddle_inference_requests_total", COUNTER, "Completions answered, by base model.", ("model", "status"),
        panels=(_rate("Inference", "Completions per second", "reqps", "model", "status"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_inference_tokens_total", COUNTER, "Tokens of completions: prompt, completion, cached, reasoning.",
        ("model", "kind"), panels=(_rate("Inference", "Tokens per second", "short", "model", "kind"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_inference_limited_total", COUNTER, "Completions refused by a limit of a project or key.",
        panels=(_rate("Inference", "Refused and lost", "ops", legend="refused by a limit"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_inference_bookkeeping_failures_total", COUNTER,
        "Completions whose usage or trace could not be stored; they were answered.", ("what",),
        panels=(_rate("Inference", "Refused and lost", "ops", "what", legend="{{what}} not stored"),),
        alerts=(
            Alert("HeddleUsageLost", "sum by (what) (increase(METRIC[15m])) > 0", 0,
                  "The {{ $labels.what }} of completions could not be stored"),
        ),
    )  # fmt: skip
    for name, sentence, title, buckets in (
        ("seconds", "Time from the request to the end of a completion.", "Duration (p95)", _COMPLETIONS),
        ("first_token_seconds", "Time to the first token.", "Time to first token (p95)", _COMPLETIONS),
        ("inter_token_seconds", "Mean time between tokens of a completion.", "Time between tokens (p95)", _FAST[:-2]),
    ):
        panels = (_quantile("Inference", title, "model"),)
        yield MetricRow(f"heddle_inference_{name}", HISTOGRAM, sentence, ("model",), buckets, panels)


def _engine_rows() -> Iterator[MetricRow]:
    for name, kind, sentence, title, unit, legend in (
        ("ready", GAUGE, "1 while the model is loaded.", "Ready", "short", ""),
        ("running", GAUGE, "Sequences that are being generated.", "Sequences", "short", "running"),
        ("waiting", GAUGE, "Sequences that wait for the engine.", "Sequences", "short", "waiting"),
        ("kv_blocks", GAUGE, "Blocks of the KV cache.", "KV cache", "short", "all"),
        ("kv_blocks_used", GAUGE, "Blocks of the KV cache in use by sequences.", "KV cache", "short", "used"),
        ("kv_blocks_cached", GAUGE, "Blocks kept for prefix reuse; freed when sequences need them.", "KV cache",
         "short", "cached"),
        ("resident_memory_bytes", GAUGE, "Memory of the engine's process.", "Memory", "bytes", ""),
        ("load_seconds", GAUGE, "Time to load the model.", "Loading", "s", ""),
        ("adapters", GAUGE, "Adapter versions that are loaded.", "Adapters", "short", ""),
        ("prompt_tokens_total", COUNTER, "Prompt tokens received by the engine.", "Tokens per second", "short",
         "prompt"),
        ("generated_tokens_total", COUNTER, "Tokens generated by the engine.", "Tokens per second", "short",
         "generated"),
        ("prefix_query_tokens_total", COUNTER, "Prompt tokens looked up in the prefix cache.", "Prefix cache", "short",
         "looked up"),
        ("prefix_hit_tokens_total", COUNTER, "Prompt tokens found in the prefix cache.", "Prefix cache", "short",
         "found"),
        ("preemptions_total", COUNTER, "Sequences that lost their memory to others and were computed again.",
         "Preempted and aborted", "ops", "preempted"),
        ("aborted_total", COUNTER, "Sequences aborted because the client disconnected.",
         "Preempted and aborted", "ops", "aborted"),
        ("steps_total", COUNTER, "Steps; each generates a token for every running sequence.",
         "Steps per second", "ops", ""),
        ("step_seconds_total", COUNTER, "Time in steps; its rate is the share of time in which the engine is busy.",
         "Busy", "percentunit", ""),
    ):  # fmt: skip
        make = _rate if kind == COUNTER else _now
        panel = make("Engine", title, unit, "model", legend=f"{legend} {{{{model}}}}".strip())
        alerts: tuple[Alert, ...] = ()
        if name == "waiting":
            alerts = (
                Alert("HeddleEngineQueue", "min_over_time(METRIC[10m]) > 0", 0,
                      "Requests have waited for the model {{ $labels.model }} for ten minutes"),
            )  # fmt: skip
        yield MetricRow(f"heddle_engine_{name}", kind, sentence, ("model",), (), (panel,), alerts)


def _training_rows() -> Iterator[MetricRow]:
    yield MetricRow(
        "heddle_training_steps_total", COUNTER, "Gradient steps of all training jobs.",
        panels=(_rate("Training", "Gradient steps per second", "ops"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_training_tokens_total", COUNTER, "Trainable tokens of jobs that started.",
        panels=(_rate("Training", "Tokens per second", "short"),),
    )  # fmt: skip
    yield MetricRow(
        "heddle_training_attempts_lost_total", COUNTER, "Attempts whose process died or stopped responding.",
        panels=(_rate("Training", "Attempts lost", "ops"),),
        alerts=(
            Alert("HeddleTrainingDies", "increase(METRIC[1h]) > 2", 0,
                  "Training processes of {{ $labels.instance }} keep dying"),
        ),
    )  # fmt: skip
    for name, sentence, title in (
        ("ratio_mean", "Mean importance ratio", "Importance ratio"),
        ("ratio_max", "Largest importance ratio", "Importance ratio"),
        ("clip_fraction", "Share of clipped tokens", "Clipped tokens"),
        ("lag_mean", "Mean age, in steps, of the trajectories", "Age of trajectories"),
        ("probs_corr", "Correlation of sampled and trained probabilities", "Correlation of probabilities"),
        ("grad_norm", "Norm of the gradient", "Gradient norm"),
    ):
        panel = _now("Training", title, "short", "instance", legend=name)
        yield MetricRow(f"heddle_training_{name}", GAUGE, f"{sentence} in the last gradient step.", panels=(panel,))
    yield MetricRow(
        "heddle_training_mismatch", GAUGE,
        f"1 while probs_corr is below {LOWEST_CORRELATION}: serving and training disagree.",
        alerts=(
            Alert("HeddleTrainingMismatch", "METRIC == 1", 5,
                  "Serving and training on {{ $labels.instance }} compute different probabilities", "critical"),
        ),
    )  # fmt: skip


TABLE: tuple[MetricRow, ...] = (
    *_http_rows(), *_ingest_rows(), *_disk_rows(), *_job_rows(), *_inference_rows(), *_engine_rows(), *_training_rows(),
    *_server_rows(),
)  # fmt: skip
ROWS = {row.name: row for row in TABLE}


def make_counter(registry: CollectorRegistry, name: str) -> Counter:
    """The counter of a row."""
    row = ROWS[name]
    return Counter(name, row.help, row.labels, registry=registry)


def make_gauge(registry: CollectorRegistry, name: str) -> Gauge:
    """The gauge of a row."""
    row = ROWS[name]
    return Gauge(name, row.help, row.labels, registry=registry)


def make_histogram(registry: CollectorRegistry, name: str) -> Histogram:
    """The histogram of a row."""
    row = ROWS[name]
    return Histogram(name, row.help, row.labels, buckets=row.buckets, registry=registry)


def make_family(name: str, values: Mapping[tuple[str, ...], float]) -> CounterMetricFamily | GaugeMetricFamily:
    """The family of a row with values that were counted elsewhere, by the values of its labels."""
    row = ROWS[name]
    kind = CounterMetricFamily if row.kind == COUNTER else GaugeMetricFamily
    family = kind(name, row.help, labels=row.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
