"""The one table of settings: each row becomes a flag, a HEDDLE_* variable and a line of the config file."""

import dataclasses
import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from heddle.quotas import quotas
from heddle.setting_kinds import (
    ANY_ORIGIN,
    GIB,
    KIB,
    MAIL_ADDRESS,
    MIB,
    TIB,
    Kind,
    address,
    choice,
    command,
    group_roles,
    matching,
    networks,
    number,
    origins,
    providers,
    secret,
    several,
    show_size,
    size,
    text,
)
from heddle.wire.redaction import KINDS

_CREDENTIALS = re.compile(r"://.*@", re.DOTALL)

ENVIRONMENT_PREFIX = "HEDDLE_"
CONFIG_VARIABLE = "HEDDLE_CONFIG"
CLIENT_VARIABLES = ("HEDDLE_SERVER", "HEDDLE_API_KEY", "HEDDLE_PROJECT")
"""What the commands that call a running server read; no settings of a server."""


class BadSetting(Exception):
    """A setting that cannot be used; the text names it, its value, where it came from and what is allowed."""


def without_credentials(value: str) -> str:
    """A text without the users and passwords of the addresses in it, to be shown."""
    return _CREDENTIALS.sub("://***@", value)


def is_loopback(host: str) -> bool:
    """True when only this machine can reach an address (a name or an IP address)."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _row(default: Any, kind: Kind, sentence: str) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "sentence": sentence})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of one server; sizes in bytes, times in seconds."""

    # fmt: off
    host: str = _row("127.0.0.1", text("a host name or an address"), "The address to listen on.")
    port: int = _row(8470, number(0, 65535), "The port to listen on; 0 takes a free one.")
    data: str = _row("./heddle-data", text("a folder"), "The folder that holds everything heddle stores.")
    store: str = _row("sqlite", address("clickhouse", "clickhouses", plain="sqlite"),
        "Where calls are kept: sqlite (in the data folder), or clickhouse://user:password@host:port/database.")
    store_cluster: str = _row("none", text("a cluster name, or none"),
        "The ClickHouse cluster on which tables are replicated and distributed.")
    control: str = _row("sqlite", address("postgresql", plain="sqlite"),
        "Where everything but calls and files is kept: sqlite (in the data folder), or postgresql://user:password@host:port/database.")
    files: str = _row("folder", address(plain="folder"),
        "Where files are kept: folder (in the data folder), or an object store such as s3://bucket/prefix.")
    workers: int = _row(1, number(1, 256),
        "Processes that answer requests on this machine; above 1, an additional process writes (SQLite).")
    auth: str = _row("auto", choice("auto", "on", "off"),
        "Whether requests need a key; auto requires one unless the host is loopback and oidc_issuer is not set.")
    bootstrap_key: str = _row("none", secret(20),
        "The first key: created at startup for the user `admin` with every scope, unless it already exists. "
        "A revoked key stays revoked. Prefer the variable: other users can see flags.")
    secrets_key: str = _row("none", secret(20),
        "The key that encrypts stored secrets (keys of providers, addresses of alerts); none keeps one in the data "
        "folder. Several servers need the same key. Prefer the variable: other users can see flags.")
    oidc_issuer: str = _row("none", address("https", "http", plain="none"),
        "The OpenID Connect provider that people sign in with (extra `oidc`); requests then need a key or a session.")
    oidc_client_id: str = _row("none", text("a client id, or none"), "The client id of this server at that provider.")
    oidc_client_secret: str = _row("none", secret(1),
        "The client secret; none for a public client. Prefer the variable: other users can see flags.")
    oidc_roles: str = _row("none", group_roles(),
        "Roles by group; * is everybody who signs in. People in none of these groups are refused.")
    oidc_scopes: str = _row("openid profile email", text("scopes"), "The scopes to request from the provider.")
    oidc_groups: str = _row("groups", text("a claim"), "The claim that lists a person's groups.")
    oidc_user: str = _row("email", text("a claim"), "The claim that becomes a person's user name.")
    oidc_hours: int = _row(12, number(1, 720),
        "Hours after which people must sign in again, so that changes of groups take effect.")
    audit_days: int = _row(0, number(0, 36_500), "Days after which rows of the audit log are deleted; 0: never.")
    bootstrap_key_file: str = _row("none", text("a file, or none"),
        "A file that holds the first key, instead of bootstrap_key.")
    log_level: str = _row("info", choice("debug", "info", "warning", "error"), "How much the server logs.")
    log_format: str = _row("text", choice("text", "json"),
        "The format of log lines; json writes one object per line, with the request's id.")
    access_log: str = _row("errors", choice("off", "errors", "all"),
        "Which requests are logged; errors are those answered with 400 or above.")
    root_path: str = _row("/", matching(r"/|(/[A-Za-z0-9._~-]+)+/?", "a path such as /heddle", tail="/"),
        "The path below which a proxy serves heddle, whether or not the proxy strips it.")
    public_url: str = _row(
        "none",
        matching(
            r"https?://[A-Za-z0-9.\[\]:_-]+(/[A-Za-z0-9._~/-]*)?",
            "an address such as https://heddle.example.com, or none",
            "none",
            "/",
        ),
        "The address at which clients reach this server, for links; without keys, its host name is allowed, too.",
    )
    trusted_proxies: str = _row("none", networks(),
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto headers are trusted.")
    cors_origins: str = _row("none", origins(),
        "Origins whose pages may call this server from a browser (CORS), with a key of their own; any needs --auth on.")
    default_project: str = _row("none", matching(r"[^/:\s]+/[^/:\s]+", "team/project, or none", "none"),
        "The project for telemetry that names none in a header, resource attribute, key or service name.")
    otlp_grpc_port: int = _row(0, number(0, 65535), "The port for OTLP over gRPC, usually 4317; 0: none.")
    otlp_export_endpoint: str = _row(
        "none",
        matching(
            r"https?://[A-Za-z0-9.\[\]:_-]+(/[A-Za-z0-9._~/-]*)?",
            "an address such as http://collector:4318, or none",
            "none",
            "/",
        ),
        "Where to send spans of this server's own requests: OTLP over HTTP, to /v1/traces below this address.",
    )
    otlp_export_headers: str = _row(
        "none",
        replace(several(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+=[!-~]*", "name=value (values URL-encoded)"), is_secret=True),
        "Headers of these exports, such as project_id=team/heddle,authorization=Bearer%20KEY. Prefer the variable: "
        "other users can see flags.",
    )
    ui_files: str = _row("cached", choice("cached", "reread"),
        "Whether the files of the web interface are read once, or for each request (for development).")
    max_trace_body: int = _row(32 * MIB, size(KIB), "The largest request body on trace routes.")
    max_table_body: int = _row(256 * MIB, size(KIB),
        "The largest request body that lists the row digests of a table (46 bytes a row).")
    max_json_nodes: int = _row(1_500_000, number(1000, 10**9),
        "The most JSON values (lists, objects and what they contain) in a request body that holds data; "
        "a twentieth of it on other routes.")
    response_days: int = _row(30, number(1, 36_500),
        "How many days stored responses and conversations are kept after the last addition.")
    max_chat_body: int = _row(8 * MIB, size(KIB), "The largest request body on inference routes.")
    max_training_body: int = _row(256 * MIB, size(KIB), "The largest request body on training routes.")
    max_file: int = _row(GIB, size(1), "The largest file that can be uploaded.")
    max_archive: int = _row(64 * GIB, size(1), "The largest archive that can be imported over the API.")
    max_connections: int = _row(4096, number(8, 1_000_000),
        "How many connections may be open; beyond that, the longest idle ones are closed.")
    max_connections_per_address: int = _row(1024, number(1, 1_000_000),
        "How many of them may come from one address; trusted_proxies are exempt.")
    max_header_bytes: int = _row(64 * KIB, size(KIB, MIB), "The largest request head (431 beyond).")
    header_timeout: float = _row(10.0, number(0.1, 3600, whole=False),
        "How long a client may take to send the head of a request (408).")
    body_timeout: float = _row(10.0, number(0.1, 3600, whole=False),
        "How long a client may pause while it sends a body (408).")
    min_body_rate: int = _row(KIB, size(1, GIB),
        "Bytes per second that a client must send of a body, after the first body_timeout seconds (408).")
    max_unfinished_bytes: int = _row(128 * MIB, size(MIB),
        "Memory for bodies that are still arriving; beyond that they wait, and the slowest is aborted (429).")
    max_unfinished_bytes_per_address: int = _row(48 * MIB, size(MIB),
        "The share of that memory for bodies from one address.")
    write_timeout: float = _row(60.0, number(0.1, 86_400, whole=False),
        "How long a client may leave its response unread before the connection is closed.")
    max_event_streams: int = _row(16, number(1, 100_000),
        "How many event streams one key may have open at the same time (429 beyond).")
    max_metric_series: int = _row(10_000, number(1, 10_000_000),
        "The most metric series in a project; points of further series are rejected.")
    max_page_rows: int = _row(10_000, number(1, 1_000_000), "The most rows in one page of a list.")
    large_field_bytes: int = _row(MIB, size(KIB), "Inputs and outputs above this size are stored as separate files.")
    write_queue_bytes: int = _row(64 * MIB, size(KIB),
        "How much may wait to be written; beyond that, writers must wait (429).")
    durability: str = _row("full", choice("full", "normal"),
        "full: acknowledged data survives a power loss; normal: it survives a crash of the process.")
    search: str = _row("on", choice("on", "off"),
        "Whether calls in SQLite are indexed for text search; off refuses $search.")
    readers: int = _row(4, number(1, 64), "How many queries run at the same time.")
    query_timeout: float = _row(60.0, number(0.1, 86_400, whole=False),
        "How long a query may run before it is aborted (504).")
    max_database_bytes: int = _row(0, size(MIB, 1024 * TIB, none="no limit"),
        "The largest SQLite database; beyond that, writes are refused (507).")
    shutdown_grace: float = _row(30.0, number(0, 3600, whole=False),
        "How long a stopping server waits for requests in progress.")
    shutdown_drain: float = _row(0.0, number(0, 3600, whole=False),
        "How long a stopping server still accepts requests, while /ready answers 503.")
    retention_interval: float = _row(3600.0, number(1, 86_400, whole=False),
        "How often calls older than their project's retention are deleted.")
    redaction: str = _row("none", several("|".join(KINDS), ", ".join(KINDS)),
        "What to remove from content before it is stored, in projects without rules of their own.")

    model: str = _row("heddle-tiny", text("a model"),
        "The model to serve: heddle-tiny, a Hugging Face folder, a hub id, or none.")
    model_name: str = _row("auto", text("a name"), "What clients call the model; auto takes it from the model.")
    model_load: str = _row("lazy", choice("lazy", "start"),
        "When to load the model: with the first request, or at startup (/ready waits for it).")
    adapters: str = _row("none", several(r"[^=\s]+=\S.*", "name=folder"),
        "LoRA adapters (PEFT folders) to load at startup.")
    adapter_roots: str = _row("auto", text("folders separated by commas, auto or any"),
        "The folders below which /v1/load_lora_adapter may read; auto is any if no key is required, otherwise none.")
    max_adapters: int = _row(32, number(1, 1024), "The most adapter versions that are kept loaded.")
    scheduling: str = _row("fcfs", choice("fcfs", "priority"),
        "The order of requests: first come, first served, or by the field priority.")
    engine: str = _row("local", choice("local", "vllm"),
        "What runs the model: heddle's own engine, or vLLM servers behind it.")
    vllm_urls: str = _row("none", several(r"https?://[^\s,;?#]+", "addresses that begin with http:// or https://"),
        "vLLM servers that are already running; none: heddle starts its own. VLLM_API_KEY holds their key.")
    vllm_replicas: int = _row(1, number(1, 64), "How many vLLM servers heddle starts.")
    vllm_command: str = _row("python3 -m vllm.entrypoints.openai.api_server", command(),
        "The command that starts a vLLM server, in an environment of its own; {replica} is its number.")
    vllm_arguments: str = _row("none", command("none"),
        "Further arguments of the vLLM servers that heddle starts; {replica} is the server's number.")
    vllm_takes: str = _row("none", several(r"[A-Za-z_]\w*", "names"),
        "Extra arguments that plug-ins of the vLLM servers understand; kv_transfer_params if they have a connector.")
    engine_device: str = _row("auto", matching(r"cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N", "auto"),
        "Where the model runs.")
    engine_dtype: str = _row("auto", choice("auto", "float32", "bfloat16", "int8"),
        "The precision of the weights; auto is float32 below 100 million parameters, else bfloat16. int8 is for CPUs.")
    engine_threads: int = _row(0, number(0, 1024),
        "CPU threads of the engine; 0 leaves one core to the server and adapts to the load.")
    max_model_len: int = _row(0, number(0, 10_000_000),
        "The most tokens of prompt and output together; 0: the model's limit.")
    kv_memory: int = _row(0, size(MIB, TIB, none="a share of the free memory"), "Memory for the KV cache.")
    max_running: int = _row(64, number(1, 4096), "How many sequences the engine runs at the same time.")
    max_waiting: int = _row(1024, number(1, 1_000_000), "How many sequences may wait for the engine (429 beyond).")

    strict_fields: str = _row("off", choice("off", "on"),
        "on: refuse (400) a completion with an ignored field that would have changed the answer.")
    trace_inference: str = _row("off", choice("off", "on"),
        "on: record each completion that names a project as a call in that project.")
    inference_project_concurrency: int = _row(0, number(0, 1_000_000),
        "How many completions of one project may run at the same time (429 beyond); 0: no limit.")
    inference_key_concurrency: int = _row(0, number(0, 1_000_000),
        "How many completions of one key may run at the same time (429 beyond); 0: no limit.")
    inference_project_tokens_per_minute: int = _row(0, number(0, 10**12),
        "Tokens of prompts and answers that one project may use per minute (429); 0: no limit.")
    inference_key_tokens_per_minute: int = _row(0, number(0, 10**12),
        "Tokens of prompts and answers that one key may use per minute (429); 0: no limit.")
    project_quotas: str = _row("none", quotas(of_projects=True),
        "What each project without quotas of its own may send (429 beyond) and store (507 beyond).")
    key_quotas: str = _row("none", quotas(of_projects=False),
        "What each key without quotas of its own may send (429 beyond).")
    providers: str = _row("none", providers(),
        "Model servers that /completions/create may call, each with the variable that holds its key.")
    image_provider: str = _row("none", text("the name of a provider, or none"),
        "The provider that /image/create uses for models named without one.")

    training: str = _row("on", choice("on", "off"), "Whether training jobs run on this server.")
    trainer: str = _row("local", choice("local", "torchrun"),
        "What runs training: local (processes of this server), or torchrun (workers that watch the handover folder).")
    training_workers: int = _row(1, number(1, 64), "How many training jobs (of different models) run at the same time.")
    training_ranks: int = _row(1, number(1, 1024), "Processes of one training job on this machine; above 1, torchrun.")
    training_device: str = _row("auto", matching(r"cpu|cuda(:\d+)?", "auto, cpu, cuda or cuda:N", "auto"),
        "Where training runs.")
    training_dtype: str = _row("auto", choice("auto", "float32", "bfloat16"),
        "The precision of the frozen weights; auto is engine_dtype (int8 counts as auto).")
    training_threads: int = _row(0, number(0, 1024),
        "CPU threads of a training job, stored with the job; 0: one below 50 million parameters.")
    training_idle: float = _row(600.0, number(0, 86_400, whole=False),
        "How long an idle training process keeps its model in memory.")
    training_attempts: int = _row(3, number(1, 100), "Attempts without progress after which a training job fails.")
    training_lease: float = _row(30.0, number(1, 86_400, whole=False),
        "How long a training process may be silent before its job is given to another.")
    training_queue: int = _row(64, number(1, 1_000_000), "How many jobs of one model may wait (429 beyond).")
    training_keep: int = _row(0, number(0, 1_000_000),
        "How many of a model's newest steps to keep besides the latest policy; 0: all.")
    training_sequence: int = _row(0, number(0, 10_000_000),
        "The most tokens of a training sequence; longer ones are dropped; 0: the model's limit.")
    training_lora_rank: int = _row(8, number(1, 1024), "The rank of the LoRA adapters of new models.")
    training_lora_alpha: float = _row(16.0, number(0.001, 1e6, whole=False),
        "The alpha of the LoRA adapters of new models.")
    training_sources: str = _row(
        "none",
        several(r"(https://[^\s/]|file:///)\S*", "addresses that begin with https:// or file:///"),
        "Where training data may be read from; an address must begin with one of these.",
    )

    evaluation_workers: int = _row(2, number(1, 64),
        "How many evaluation jobs (runs, scores, replays) run at the same time.")
    evaluation_parallel: int = _row(20, number(1, 1000),
        "How many rows of an evaluation, or calls of a scoring job, are processed at the same time.")
    evaluation_queue: int = _row(1000, number(1, 1_000_000),
        "How many evaluation jobs of one project may wait or run (429 beyond).")

    alert_interval: float = _row(30.0, number(0.1, 86_400, whole=False),
        "How often alert rules are evaluated.")
    alert_webhooks: str = _row("none", several(r"https?://[^\s/]\S*", "addresses that begin with https:// or http://"),
        "Where alerts may be sent; an address must be one of these or lie below one.")
    alert_emails: str = _row(
        "none",
        several(r"[^@\s<>,]*@[^@\s<>,]+", "mail addresses or domains such as @example.com"),
        "Who may receive alerts by mail: addresses, or everybody of a domain (@example.com).",
    )
    smtp: str = _row("none", address("smtp", "smtps", plain="none"),
        "The server that sends alerts by mail: smtp://user:password@host:587 (with STARTTLS if the server offers it; "
        "a password requires it), or smtps://user:password@host:465.")
    smtp_from: str = _row("heddle@localhost", matching(MAIL_ADDRESS, "a mail address"),
        "The sender of mails.")
    # fmt: on

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Where the values came from that were given: `port` from `flag --port`; no setting itself."""

    @cached_property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the address."""
        return is_loopback(self.host)

    @cached_property
    def named_origins(self) -> frozenset[bytes]:
        """The origins of `cors_origins`; empty for `none` and `any`."""
        named = [] if self.cors_origins in ("none", ANY_ORIGIN) else self.cors_origins.split(",")
        return frozenset(origin.encode() for origin in named)

    def first_key(self) -> str:
        """The first key, from the setting or from the file; empty where none is given. Raises BadSetting."""
        if self.bootstrap_key_file == "none":
            return "" if self.bootstrap_key == "none" else self.bootstrap_key
        try:
            told = Path(self.bootstrap_key_file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadSetting(f"bootstrap_key_file = {self.bootstrap_key_file!r} cannot be read: {error}") from None
        key: str = _BY_NAME["bootstrap_key"].read(told, f"file {self.bootstrap_key_file}")
        return "" if key == "none" else key

    @cached_property
    def needs_key(self) -> bool:
        """True when requests must carry a key."""
        return self.auth == "on" or (self.auth == "auto" and (not self.is_loopback or self.oidc_issuer != "none"))


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    default: Any
    kind: Kind
    sentence: str

    @property
    def flag(self) -> str:
        """The command line's spelling."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The environment's spelling."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    def show(self, value: Any) -> str:
        """The value as people write it, without what must not be seen."""
        if self.kind.is_secret and value != self.default:
            return "***"
        if isinstance(value, str):
            return without_credentials(value)
        return show_size(value) if self.kind.is_size else f"{value:g}" if isinstance(value, float) else str(value)

    def read(self, value: Any, source: str) -> Any:
        """The value of a text, or of a TOML value; raises BadSetting."""
        try:
            if isinstance(value, (bool, list, dict)):
                raise ValueError
            return self.kind.parse(str(value))
        except ValueError:
            shown = "***" if self.kind.is_secret else without_credentials(str(value))
            message = f"{self.name} = {shown!r} (from {source}) is not valid; expected {self.kind.allowed}"
            raise BadSetting(message) from None


TABLE: tuple[Row, ...] = tuple(
    Row(field.name, field.default, field.metadata["kind"], field.metadata["sentence"])
    for field in dataclasses.fields(Settings)
    if field.metadata
)
_BY_NAME = {row.name: row for row in TABLE}
ADDRESSES = frozenset(("providers", "alert_webhooks", "store", "control", "files", "vllm_urls", "smtp"))
"""Settings whose addresses may carry a secret: nobody sees more than their hosts."""
PLACES = ADDRESSES | frozenset(
    ("data", "host", "training_sources", "otlp_export_endpoint", "alert_emails", "smtp_from", "model", "adapters")
    + ("vllm_command", "vllm_arguments")
)
"""Settings that name folders, addresses or receivers: admins of the whole server see those."""
_VARIABLES = (*(row.variable for row in TABLE), CONFIG_VARIABLE, *CLIENT_VARIABLES)
_OF_TESTS = re.compile(ENVIRONMENT_PREFIX + r"(?:SOAK|SCREENS|TEST_\w+)")
"""What the tests of this project read; `make soak` and its like set them for everything that they start."""
_SERVICE_LINK = re.compile(ENVIRONMENT_PREFIX + r"(?:[A-Z0-9]+_)*(?:SERVICE_(?:HOST|PORT.*)|PORT_\d+_(?:TCP|UDP).*)")


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, config: str | None = None) -> Settings:
    """The settings of flags over HEDDLE_* variables over the config file over the defaults; raises BadSetting.

    A flag that is None and a variable that is empty were not given. `config` (or HEDDLE_CONFIG) names a TOML file.
    """
    environment = os.environ if environment is None else environment
    for variable in unknown_variables(environment):
        raise BadSetting(f"variable {variable} is not a setting of heddle{_nearest(variable, _VARIABLES)}")
    path = config or environment.get(CONFIG_VARIABLE, "")
    values = _from_file(path)
    sources = dict.fromkeys(values, f"file {path}")
    for row in TABLE:
        if environment.get(row.variable, "").strip():
            sources[row.name] = f"variable {row.variable}"
            values[row.name] = row.read(environment[row.variable], sources[row.name])
    for name, value in flags.items():
        if value is not None:
            row = _BY_NAME[name]
            sources[name] = f"flag {row.flag}"
            values[name] = row.read(value, sources[name])
    settings = Settings(**values, sources=sources)
    if settings.bootstrap_key != "none" and settings.bootstrap_key_file != "none":
        raise BadSetting("bootstrap_key and bootstrap_key_file cannot both be set: set one of them")
    if settings.otlp_grpc_port and settings.otlp_grpc_port == settings.port:
        raise BadSetting(f"port and otlp_grpc_port are both {settings.port}: set them to different ports")
    if settings.oidc_issuer != "none":
        missing = next((name for name in ("oidc_client_id", "oidc_roles") if getattr(settings, name) == "none"), None)
        if missing or settings.auth == "off":
            what = f"{missing} must be given, too" if missing else "auth must not be off"
            raise BadSetting(f"oidc_issuer = {settings.oidc_issuer!r} lets people sign in: {what}")
    if settings.cors_origins == ANY_ORIGIN and not settings.needs_key:
        raise BadSetting(
            "cors_origins = 'any' is not allowed without keys, because any web page could then use this "
            "server: list the origins, or start with --auth on"
        )
    return settings


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """The HEDDLE_* variables that are no setting, but for those that Kubernetes or the tests of this project add."""
    return sorted(
        name
        for name in environment
        if name.startswith(ENVIRONMENT_PREFIX) and name not in _VARIABLES and not _SERVICE_LINK.fullmatch(name)
        if not _OF_TESTS.fullmatch(name)
    )


def _nearest(name: str, known: Collection[str]) -> str:
    """What may have been meant, as the end of a sentence."""
    # The prefix that all have in common would make them all alike.
    words = {one.removeprefix(ENVIRONMENT_PREFIX): one for one in known}
    found = difflib.get_close_matches(name.removeprefix(ENVIRONMENT_PREFIX), words, 1)
    return f": did you mean {words[found[0]]}?" if found else f": known are {', '.join(known)}"


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(f"config = {path!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"config = {path!r} is not valid TOML: {error}") from None
    values = {}
    for name, value in content.items():
        if name not in _BY_NAME:
            raise BadSetting(f"{name} in {path} is not a setting of heddle{_nearest(name, _BY_NAME)}")
        values[name] = _BY_NAME[name].read(value, f"file {path}")
    return values
