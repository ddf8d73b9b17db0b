"""The tables of agent spans, and where each field of a span lies in them."""

import sqlalchemy as sa

from heddle.store.control.repository import metadata

AGENT = ("agent_name", "agent_version", "agent_id")
TEXTS = (
    *("trace_id", "span_id", "parent_span_id", "span_name", "span_kind", "status_code", "operation_name"),
    *("provider_name", *AGENT, "request_model", "response_model", "conversation_id", "conversation_name"),
    *("tool_name", "error_type", "eval_predict_and_score_call_id"),
)
"""Text columns; empty where a span says nothing."""

TOKENS = (
    *("input_tokens", "output_tokens", "reasoning_tokens"),
    *("cache_creation_input_tokens", "cache_read_input_tokens"),
)
"""Number columns; null where a span says nothing."""

MORE_TEXTS = (
    *("status_message", "agent_description", "response_id", "tool_type", "tool_call_id", "output_type"),
    *("server_address", "wb_user_id", "wb_run_id", "eval_run_id", "eval_kind"),
    *("eval_row_digest", "eval_example_id", "eval_evaluation_name"),
)
MORE_NUMBERS = (
    *("request_temperature", "request_top_p", "request_frequency_penalty", "request_presence_penalty"),
    *("request_max_tokens", "request_seed", "request_choice_count", "compaction_items_before"),
    *("compaction_items_after", "server_port", "wb_run_step", "wb_run_step_end", "eval_trial_index"),
)
MORE_LISTS = ("finish_reasons", "request_stop_sequences")
MORE = (*MORE_TEXTS, *MORE_NUMBERS, *MORE_LISTS)
"""What few spans say: keys of the JSON object in the column `more`, which is null without any."""

CUSTOM = {
    "custom_attrs_string": "string",
    "custom_attrs_int": "int",
    "custom_attrs_float": "float",
    "custom_attrs_bool": "bool",
}
"""Custom attributes by the type of their values: keys of the JSON object in the column `custom`, null without any."""

OWN_AGENT, OWN_CONVERSATION = 1, 2
"""Bits of the column `own`: the span itself names its agent, its conversation."""

OWN = {**dict.fromkeys(AGENT, OWN_AGENT), "conversation_id": OWN_CONVERSATION}
"""The bit of each column that may be inherited."""

agent_spans = sa.Table(
    "agent_spans",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("project", sa.Text, nullable=False),
    *(sa.Column(name, sa.Text, nullable=False) for name in TEXTS),
    sa.Column("started_at", sa.BigInteger, nullable=False),
    sa.Column("ended_at", sa.BigInteger, nullable=False),
    *(sa.Column(name, sa.BigInteger) for name in TOKENS),
    sa.Column("more", sa.Text),
    sa.Column("custom", sa.Text),
    sa.Column("own", sa.Integer, nullable=False),
    sa.Column("is_counted", sa.Integer, nullable=False),
    sa.Column("hidden", sa.Integer, nullable=False, server_default=sa.text("0")),
    sa.Column("crc", sa.BigInteger),
    sa.UniqueConstraint("project", "trace_id", "span_id", name="agent_spans_by_id"),
)

CHECKED = (
    *("project", *(name for name in TEXTS if name != "conversation_name"), "started_at", "ended_at", *TOKENS),
    *("more", "custom", "own"),
)
"""What `crc` is made of, in order: what never changes; agent and conversation are empty where the span names none."""

SHOWN = agent_spans.c.hidden == sa.literal_column("0")
"""Spans whose calls are not deleted; written like this so that the indexes over shown spans serve."""


def _index(name: str, *columns: str) -> None:
    sa.Index(name, *(agent_spans.c[column] for column in columns), sqlite_where=SHOWN)


EVALUATED = agent_spans.c.eval_predict_and_score_call_id != sa.literal_column("''")
sa.Index(
    "agent_spans_by_evaluated_call",
    agent_spans.c.project,
    agent_spans.c.eval_predict_and_score_call_id,
    sqlite_where=EVALUATED,
)
_index("agent_spans_by_time", "project", "started_at")
_index("agent_spans_by_agent", "project", "agent_name", "agent_version", "started_at")
_index("agent_spans_by_conversation", "project", "conversation_id", "started_at", "trace_id")

agent_traces = sa.Table(
    "agent_traces",
    metadata,
    sa.Column("project", sa.Text, primary_key=True),
    sa.Column("trace_id", sa.Text, primary_key=True),
    *(sa.Column(name, sa.Text, nullable=False) for name in AGENT),
    sa.Column("agent_at", sa.BigInteger),
    sa.Column("conversation_id", sa.Text, nullable=False),
    sa.Column("conversation_at", sa.BigInteger),
    sa.Column("conversation_name", sa.Text, nullable=False),
    sa.Column("has_model", sa.Integer, nullable=False),
    sa.Column("seen_at", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
"""Who acts in each trace (the earliest agent and conversation that one of its spans declares), and whether models
report their own tokens in it; the sums of a trace that has any leave out all other spans."""

AGENT_TABLES = (agent_spans, agent_traces)
