"""The one table of settings: each row becomes a flag, a HEDDLE_* variable and a line of the config file."""

import dataclasses
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle.setting_kinds import (
    GIB,
    KIB,
    MIB,
    TIB,
    Kind,
    address,
    addresses,
    choice,
    networks,
    number,
    path,
    providers,
    public_url,
    show_size,
    size,
    text,
)

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


def _row(default: Any, kind: Kind, sentence: str) -> Any:
    return dataclasses.field(default=default, metadata={"kind": kind, "sentence": sentence})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every setting of one server; sizes in bytes, times in seconds."""

    host: str = _row("127.0.0.1", text("a host name or an address"), "The address to listen on.")
    port: int = _row(8470, number(0, 65535), "The port to listen on; 0 takes a free one.")
    data: str = _row("./heddle-data", text("a folder"), "The folder that holds everything heddle stores.")
    store: str = _row(
        "sqlite",
        address("clickhouse", "clickhouses", plain="sqlite"),
        "Where calls are kept: sqlite (in the data folder), or clickhouse://user:password@host:port/database.",
    )
    store_cluster: str = _row(
        "none",
        text("a name of a cluster, or none"),
        "The ClickHouse cluster on which tables are made replicated and distributed.",
    )
    control: str = _row(
        "sqlite",
        address("postgresql", plain="sqlite"),
        "Where everything small is kept: sqlite (in the data folder), or postgresql://user:password@host:port/database.",
    )
    files: str = _row(
        "folder",
        address(plain="folder"),
        "Where files are kept: folder (in the data folder), or an object store such as s3://bucket/prefix.",
    )
    workers: int = _row(
        1, number(1, 256), "Processes that answer requests on this machine; above 1, one more writes (SQLite)."
    )
    auth: str = _row(
        "auto",
        choice("auto", "on", "off"),
        "Whether requests need a key; auto asks for one unless the host is loopback.",
    )
    log_level: str = _row("info", choice("debug", "info", "warning", "error"), "How much the server logs.")
    access_log: str = _row(
        "errors",
        choice("off", "errors", "all"),
        "Which requests get a log line; errors are those answered 400 or above.",
    )
    root_path: str = _row("/", path(), "The path under which a proxy that takes it off shows this server.")
    public_url: str = _row(
        "none",
        public_url(),
        "The address under which clients reach this server, for links; without keys its host name is served, too.",
    )
    trusted_proxies: str = _row(
        "none",
        networks(),
        "Proxies whose X-Forwarded-For and X-Forwarded-Proto are believed.",
    )
    ui_files: str = _row(
        "cached",
        choice("cached", "reread"),
        "Whether the files of the web interface are read once or for each request; the latter is for its makers.",
    )
    max_trace_body: int = _row(32 * MIB, size(KIB), "The largest request body on trace routes.")
    max_table_body: int = _row(
        256 * MIB, size(KIB), "The largest list of row digests that makes a table (46 bytes a row)."
    )
    max_json_nodes: int = _row(
        1_500_000,
        number(1000, 10**9),
        "The most JSON values (lists, objects and what they hold) in a request body that holds data; "
        "other routes take a twentieth.",
    )
    max_chat_body: int = _row(8 * MIB, size(KIB), "The largest request body on inference routes.")
    max_training_body: int = _row(256 * MIB, size(KIB), "The largest request body on training routes.")
    max_file: int = _row(GIB, size(1), "The largest file that can be uploaded.")
    max_connections: int = _row(
        4096,
        number(8, 1_000_000),
        "How many connections may be open; beyond, those that wait longest for a request are closed.",
    )
    max_connections_per_address: int = _row(
        1024, number(1, 1_000_000), "The same from one address; trusted_proxies are not counted."
    )
    max_header_bytes: int = _row(64 * KIB, size(KIB, MIB), "The largest head of a request (431 beyond).")
    header_timeout: float = _row(
        10.0, number(0.1, 3600, whole=False), "How long a client may take to send the head of a request (408)."
    )
    body_timeout: float = _row(
        10.0, number(0.1, 3600, whole=False), "How long a client that sends a body may be silent (408)."
    )
    min_body_rate: int = _row(
        KIB, size(1, GIB), "Bytes a second that a client must send of a body, after the first body_timeout (408)."
    )
    max_unfinished_bytes: int = _row(
        128 * MIB,
        size(MIB),
        "Memory for bodies that are still arriving; beyond, they wait, and the slowest of them is given up (429).",
    )
    max_unfinished_bytes_per_address: int = _row(48 * MIB, size(MIB), "The same for bodies from one address.")
    write_timeout: float = _row(
        60.0, number(0.1, 86_400, whole=False), "How long a client may read nothing of its answer before it is cut off."
    )
    max_event_streams: int = _row(
        16, number(1, 100_000), "How many streams of events one key may have open at the same time (429 beyond)."
    )
    max_page_rows: int = _row(10_000, number(1, 1_000_000), "The most rows in one page of a list.")
    large_field_bytes: int = _row(MIB, size(KIB), "Inputs and outputs above this size are kept in a file of their own.")
    write_queue_bytes: int = _row(
        64 * MIB, size(KIB), "Above this much waiting to be written, writers are told to wait (429)."
    )
    durability: str = _row(
        "full",
        choice("full", "normal"),
        "full: what was acknowledged survives power loss; normal: a crash of the process.",
    )
    readers: int = _row(4, number(1, 64), "How many queries run at the same time.")
    query_timeout: float = _row(60.0, number(0.1, 86_400, whole=False), "After this time a query is given up (504).")
    max_database_bytes: int = _row(
        0, size(MIB, 1024 * TIB, none="no limit"), "Above this size of the SQLite database, writes are refused (507)."
    )
    shutdown_grace: float = _row(
        30.0, number(0, 3600, whole=False), "How long a stopping server waits for requests that are in flight."
    )
    shutdown_drain: float = _row(
        0.0,
        number(0, 3600, whole=False),
        "How long a stopping server still takes requests, while /ready says 503 and answers close their connections.",
    )
    retention_interval: float = _row(
        3600.0, number(1, 86_400, whole=False), "How often calls older than their project's retention are deleted."
    )

    model: str = _row(
        "heddle-tiny",
        text("a model"),
        "The model to serve: heddle-tiny, a Hugging Face folder, a hub id, or none.",
    )
    model_name: str = _row("auto", text("a name"), "What clients call the model; auto takes it from the model.")
    model_load: str = _row(
        "lazy",
        choice("lazy", "start"),
        "When the model is loaded: with the first request, or at the start (/ready waits for it).",
    )
    adapters: str = _row(
        "none",
        text("name=folder, with commas between several, or none"),
        "LoRA adapters (PEFT folders) to offer from the start.",
    )
    adapter_roots: str = _row(
        "auto",
        text("folders with commas between several, auto or any"),
        "Below which folders /v1/load_lora_adapter may read; auto is any where no key is needed, else none.",
    )
    max_adapters: int = _row(32, number(1, 1024), "The most adapter versions that are kept loaded.")
    scheduling: str = _row(
        "fcfs", choice("fcfs", "priority"), "Who goes first: first come, first served, or the field priority."
    )
    engine: str = _row(
        "local", choice("local", "vllm"), "What computes the model: heddle's own engine, or servers of vLLM behind it."
    )
    vllm_urls: str = _row(
        "none",
        addresses(),
        "Servers of vLLM that run already; none: heddle starts its own. Their key is taken from VLLM_API_KEY.",
    )
    vllm_replicas: int = _row(1, number(1, 64), "How many servers of vLLM heddle starts.")
    vllm_command: str = _row(
        "python3 -m vllm.entrypoints.openai.api_server",
        text("a command"),
        "What starts a server of vLLM, in an environment of its own; {replica} is its number.",
    )
    vllm_arguments: str = _row(
        "none", text("arguments, or none"), "Further arguments of the servers that heddle starts; {replica} as above."
    )
    vllm_takes: str = _row(
        "none",
        text("names with commas between several, or none"),
        "Extra arguments of plug-ins that the servers understand; kv_transfer_params where they have a connector.",
    )
    engine_device: str = _row("auto", text("auto, cpu, cuda or cuda:N"), "Where the model runs.")
    engine_dtype: str = _row(
        "auto",
        choice("auto", "float32", "bfloat16"),
        "The precision of the weights; auto is float32 below 100 million parameters.",
    )
    engine_threads: int = _row(
        0, number(0, 1024), "CPU threads of the engine; 0 leaves one core to the server and adapts to the load."
    )
    max_model_len: int = _row(
        0, number(0, 10_000_000), "The most tokens of prompt and output together; 0: the model's."
    )
    kv_memory: int = _row(0, size(MIB, TIB, none="a share of the free memory"), "Memory for keys and values.")
    max_running: int = _row(64, number(1, 4096), "How many sequences the engine works on at the same time.")
    max_waiting: int = _row(1024, number(1, 1_000_000), "How many sequences may wait for the engine (429 beyond).")

    trace_inference: str = _row(
        "off",
        choice("off", "on"),
        "on: each chat completion that names a project becomes a call in that project's trace.",
    )
    inference_project_concurrency: int = _row(
        0, number(0, 1_000_000), "How many completions of one project may run at the same time (429 beyond); 0: any."
    )
    inference_key_concurrency: int = _row(
        0, number(0, 1_000_000), "How many completions of one key may run at the same time (429 beyond); 0: any."
    )
    inference_project_tokens_per_minute: int = _row(
        0, number(0, 10**12), "Tokens of prompts and answers that one project may use per minute (429); 0: any."
    )
    inference_key_tokens_per_minute: int = _row(
        0, number(0, 10**12), "Tokens of prompts and answers that one key may use per minute (429); 0: any."
    )
    providers: str = _row(
        "none",
        providers(),
        "Other servers of models that /completions/create may ask, each with the variable that holds its key.",
    )
    image_provider: str = _row(
        "none",
        text("a name of providers, or none"),
        "The provider that /image/create asks for models that are named without one.",
    )

    training: str = _row("on", choice("on", "off"), "Whether training jobs run on this server.")
    trainer: str = _row(
        "local",
        choice("local", "torchrun"),
        "Who trains: local (processes of this server), or torchrun (workers that watch the handover folder).",
    )
    training_workers: int = _row(1, number(1, 64), "How many training jobs (of different models) run at the same time.")
    training_ranks: int = _row(1, number(1, 1024), "Processes of one training job on this machine; above 1, torchrun.")
    training_device: str = _row("auto", text("auto, cpu, cuda or cuda:N"), "Where training runs.")
    training_dtype: str = _row(
        "auto", choice("auto", "float32", "bfloat16"), "The precision of the frozen weights; auto is the engine's."
    )
    training_threads: int = _row(
        0, number(0, 1024), "CPU threads of a training job, kept with the job; 0: one below 50 million parameters."
    )
    training_idle: float = _row(
        600.0, number(0, 86_400, whole=False), "How long an idle training process keeps its model in memory."
    )
    training_attempts: int = _row(3, number(1, 100), "Attempts without progress after which a training job fails.")
    training_lease: float = _row(
        30.0, number(1, 86_400, whole=False), "How long a training process may be silent before its job is taken away."
    )
    training_queue: int = _row(64, number(1, 1_000_000), "How many jobs of one model may wait (429 beyond).")
    training_keep: int = _row(
        0, number(0, 1_000_000), "How many of a model's newest steps are kept beside the latest policy; 0: all."
    )
    training_sequence: int = _row(
        0, number(0, 10_000_000), "The most tokens of a training sequence, longer ones are dropped; 0: the model's."
    )
    training_lora_rank: int = _row(8, number(1, 1024), "The rank of the LoRA adapters of new models.")
    training_lora_alpha: float = _row(
        16.0, number(0.001, 1e6, whole=False), "The alpha of the LoRA adapters of new models."
    )
    training_sources: str = _row(
        "none",
        text("addresses that begin with https:// or file:///, with commas between several, or none"),
        "Where training data may be read from; an address must begin with one of these.",
    )

    evaluation_workers: int = _row(
        2, number(1, 64), "How many jobs of evaluation (runs, scores, replays) run at the same time."
    )
    evaluation_parallel: int = _row(
        20, number(1, 1000), "How many rows of one evaluation, or calls of one scoring, are worked on at the same time."
    )
    evaluation_queue: int = _row(
        1000, number(1, 1_000_000), "How many jobs of evaluation of one project may wait or run (429 beyond)."
    )

    alert_interval: float = _row(
        30.0, number(0.1, 86_400, whole=False), "How often the rules of alerts are looked at, in seconds."
    )
    alert_webhooks: str = _row(
        "none",
        text("addresses that begin with https:// or http://, with commas between several, or none"),
        "Where messages of alerts may be sent; an address must be one of these or lie below it.",
    )

    sources: Mapping[str, str] = dataclasses.field(default_factory=dict, repr=False, compare=False)
    """Where the values came from that were given: `port` from `flag --port`; no setting itself."""

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the address."""
        try:
            return self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def needs_key(self) -> bool:
        """True when requests must carry a key."""
        return self.auth == "on" or (self.auth == "auto" and not self.is_loopback)


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
        """The value as people write it."""
        return show_size(value) if self.kind.is_size else f"{value:g}" if isinstance(value, float) else str(value)

    def read(self, value: Any, source: str) -> Any:
        """The value of a text, or of a TOML value; raises BadSetting."""
        try:
            if isinstance(value, (bool, list, dict)):
                raise ValueError
            return self.kind.parse(str(value))
        except ValueError:
            shown = without_credentials(str(value))
            message = f"{self.name} = {shown!r} (from {source}) cannot be used: allowed is {self.kind.allowed}"
            raise BadSetting(message) from None


TABLE: tuple[Row, ...] = tuple(
    Row(field.name, field.default, field.metadata["kind"], field.metadata["sentence"])
    for field in dataclasses.fields(Settings)
    if field.metadata
)
_BY_NAME = {row.name: row for row in TABLE}


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None, config: str | None = None) -> Settings:
    """The settings of flags over HEDDLE_* variables over the config file over the defaults; raises BadSetting.

    A flag that is None was not given. `config` (or HEDDLE_CONFIG) names a TOML file.
    """
    environment = os.environ if environment is None else environment
    path = config or environment.get(CONFIG_VARIABLE, "")
    values = _from_file(path)
    sources = dict.fromkeys(values, f"file {path}")
    for row in TABLE:
        if row.variable in environment:
            sources[row.name] = f"variable {row.variable}"
            values[row.name] = row.read(environment[row.variable], sources[row.name])
    for name, value in flags.items():
        if value is not None:
            row = _BY_NAME[name]
            sources[name] = f"flag {row.flag}"
            values[name] = row.read(value, sources[name])
    return Settings(**values, sources=sources)


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """The HEDDLE_* variables that are no setting: misspelt ones, or ones of something else of that name."""
    known = {row.variable for row in TABLE} | {CONFIG_VARIABLE, *CLIENT_VARIABLES}
    return sorted(name for name in environment if name.startswith(ENVIRONMENT_PREFIX) and name not in known)


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise BadSetting(f"config = {path!r} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"config = {path!r} is no TOML: {error}") from None
    values = {}
    for name, value in content.items():
        if name not in _BY_NAME:
            raise BadSetting(f"{name} in {path} is no setting of heddle: known are {', '.join(_BY_NAME)}")
        values[name] = _BY_NAME[name].read(value, f"file {path}")
    return values
