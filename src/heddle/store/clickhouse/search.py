"""Text search in ClickHouse: a column with the words of each call in their order, and an index of it.

ClickHouse makes the column of the others, for calls that were there before it in the background, so that the words of a
call come, change and go with its row. A phrase is a part of it; a letter of a script without spaces is a word there.
"""

import re

import sqlalchemy as sa

from heddle.store.clickhouse.client import Bound
from heddle.store.clickhouse.schema import CALLS, Place, quoted
from heddle.store.control.feedback import feedback
from heddle.store.query.clickhouse import once
from heddle.store.query.compiler import balanced
from heddle.wire import refs
from heddle.wire.query import Search
from heddle.wire.search import DENSE, MAX_TEXT, Term, parse_search, searched

_LABEL = "decodeURLComponent(extract(op_name, '(?:/op/|/object/|^)([^/:]*)(?:$|:[^/]*$)'))"
_TEXTS = ("display_name", "exception")
_DOCUMENTS = ("inputs", "attributes", "otel_dump", "output")
_CLASS = re.sub(r"\\(?:u|U000)([0-9a-f]{4,5})", r"\\x{\1}", DENSE.encode("ascii", "backslashreplace").decode("ascii"))
_MARKS = ("[\\x{300}-\\x{36f}]+", "")
_LETTERS = (f"([{_CLASS}])", " \\1 ")
_BETWEEN = ("[^\\p{L}\\p{N}\\x01]+", " ")
_NESTED = ("\\\\\\\\([bfnrt])([\\p{L}\\p{N}]+)", " \\1\\2 \\2")
_ESCAPES = ("\\\\(?:[bfnrt]|u[0-9a-fA-F]{4})", " ")
_NOISE = (
    ("[A-Za-z0-9+/_=-]{160,}", " "),
    ("(?:-?[0-9]+(?:[.][0-9]+)?(?:[eE][-+]?[0-9]+)?\\s*,\\s*){16,}", " "),
)
_NOISE_FROM = 4096
_HUMPS = (("([a-z0-9])([A-Z])", "\\1 \\2"), ("([A-Z])([A-Z][a-z])", "\\1 \\2"))
_CAMEL = "[A-Za-z0-9]*[a-z0-9][A-Z][A-Za-z0-9]*|[A-Z]{2,}[a-z]+"
_END = "' \\x01 '"


def _replaced(text: str, *pairs: tuple[str, str]) -> str:
    for pattern, replacement in pairs:
        text = f"replaceRegexpAll({text}, {quoted(pattern)}, {quoted(replacement)})"
    return text


def words() -> str:
    """The SQL of the words of a call, each between two spaces."""
    backslash = quoted("\\")
    cut = [f"substring(ifNull({name}, ''), 1, {MAX_TEXT})" for name in (*_TEXTS, *_DOCUMENTS)]
    texts = [_LABEL, *(f"replaceAll({text}, {backslash}, ' ')" for text in cut[: len(_TEXTS)])]
    documents = f"concat({f', {_END}, '.join(cut[len(_TEXTS) :])})"
    read = once(documents, "d", f"if(position(d, {backslash}) > 0, {_replaced('d', _NESTED, _ESCAPES)}, d)")
    read = once(read, "d", f"if(length(d) > {_NOISE_FROM}, {_replaced('d', *_NOISE)}, d)")
    compounds = f"arrayStringConcat(arrayMap(w -> {_replaced('w', *_HUMPS)}, extractAll(t, {quoted(_CAMEL)})), {_END})"
    whole = once(f"concat({f', {_END}, '.join([*texts, read])})", "t", f"concat(t, {_END}, {compounds})")
    bare = f"normalizeUTF8NFC({_replaced('normalizeUTF8NFD(t)', _MARKS)})"
    folded = once(whole, "t", f"lowerUTF8(if(isValidASCII(t), t, {_replaced(bare, _LETTERS)}))")
    return f"concat(' ', {_replaced(folded, _BETWEEN)}, ' ')"


def add_words(place: Place) -> list[str]:
    """The statements that give calls their words, and these an index."""
    local, cluster = place.local(CALLS), place.on_cluster
    kind = "text(tokenizer = 'splitByNonAlpha')" if place.has_text_index else "tokenbf_v1(32768, 3, 0)"
    made = f" MATERIALIZED {words()} CODEC(ZSTD(1))"
    return [
        f"ALTER TABLE {local}{cluster} ADD COLUMN IF NOT EXISTS words String{made}",
        *([] if local == CALLS else [f"ALTER TABLE {CALLS}{cluster} ADD COLUMN IF NOT EXISTS words String"]),
        f"ALTER TABLE {local}{cluster} ADD INDEX IF NOT EXISTS by_words words TYPE {kind} GRANULARITY 1",
        f"ALTER TABLE {local}{cluster} MATERIALIZE COLUMN words",
        f"ALTER TABLE {local}{cluster} MATERIALIZE INDEX by_words",
    ]


def condition(node: Search, bound: Bound, project: str, about: list[str]) -> str:
    """The condition that a call holds what is asked; `about` are the calls whose feedback does."""
    asked = parse_search(node.text)
    tests = [balanced([_term(term, bound) for term in asked.terms], "AND")]
    if about:
        tests.append(f"(c.id IN {bound.values(about)})")
    if asked.exact is not None:
        exact = bound.value(asked.exact)
        tests += [f"(c.id = {exact})", f"(c.trace_id = {exact})", f"(ifNull(c.thread_id, '') = {exact})"]
    found = balanced(tests, "OR")
    if not node.any_of_trace:
        return found
    live = f"c.project = {bound.value(project)} AND c.deleted_at = 0"
    return f"(c.trace_id IN (SELECT c.trace_id FROM {CALLS} AS c FINAL WHERE {live} AND {found}))"


def _term(term: Term, bound: Bound) -> str:
    """The condition of one term: its words by the index, their order by the text of them."""
    known = term.letters[:-1] if term.is_prefix and not term.is_dense else term.letters
    tests = [f"hasToken(c.words, {bound.value(word)})" for word in known]
    if len(term.letters) > 1 or (term.is_prefix and not term.is_dense):
        end = "" if term.is_prefix or term.is_dense else " "
        tests.append(f"(position(c.words, {bound.value(f' {chr(32).join(term.letters)}{end}')}) > 0)")
    return balanced(tests, "AND")


def feedback_calls(connection: sa.Connection, node: Search, project: str) -> list[str]:
    """The calls of a project with feedback that holds what is asked."""
    asked = parse_search(node.text)
    prefix = f"{refs.INTERNAL}{project}/call/"
    c = feedback.c
    found = sa.select(c.weave_ref, c.payload).where(c.project == project)
    found = found.where(sa.func.substr(c.weave_ref, 1, len(prefix)) == prefix)
    for word in {word.lower() for term in asked.terms for word in term.words if word.isascii()}:
        found = found.where(sa.func.lower(c.payload).contains(word, autoescape=True))
    rows = connection.execute(found)
    held = (ref[len(prefix) :] for ref, payload in rows if asked.is_held_by(searched((), (payload,))))
    return list(dict.fromkeys(held))
