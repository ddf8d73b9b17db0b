"""Values inside JSON texts, read by SQLite and by PostgreSQL: the same answers."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import sqlalchemy as sa

from heddle.store.control.repository import Prepared
from heddle.store.control.row_queries import CodePoints, Ending, JsonRead, Listed, Written
from heddle.store.postgres.connection import connect
from heddle.store.postgres.migrate import migrate
from heddle.store.query.compiler import Dialect, Kind, contained
from heddle.store.sqlite.database import open_reader, open_writer
from heddle.wire import times
from tests.support.postgres import PostgresServer
from tests.support.written_calls import INSTANTS

Connections = tuple[sa.Connection, sa.Connection]

VALUES = (
    *(
        "1",
        "-1",
        "0",
        "1.0",
        "1.5",
        "-2.5",
        "1e2",
        "1E+2",
        "1e-3",
        "100.0",
        "255",
        "256",
        "-0",
        "1e15",
        "1e16",
        "1e300",
    ),
    *("12345678901234567890", "9007199254740993", "0.1", "0.30000000000000004", "true", "false", "null"),
    *(
        '""',
        '"a"',
        '"ä"',
        '"ÄÖ"',
        '"true"',
        '"false"',
        '"12"',
        '" 12 "',
        '"+5"',
        '"-5"',
        '"--5"',
        '"1.5"',
        '".5"',
        '"5."',
    ),
    *(
        '"1e5"',
        '"0x10"',
        '"nan"',
        '"inf"',
        '"1e400"',
        '"-1e99999"',
        '"1e-400"',
        '"1e999999999"',
        '"05"',
        '"%"',
        '"\\/"',
    ),
    *(
        '"99999999999999999999"',
        '"' + "9" * 400 + '"',
        '"\\\\u0000"',
        '"😀"',
        '"\\n\\t"',
        '"12\\n"',
        '"\\u00a05"',
        '"a\\"b"',
    ),
    *("[]", "[1]", "[1,2,3]", '["a","B"]', "{}", '{"a":1}', '{"a":1,"b":[1,2]}', '{"a":{"b":"x"}}', '{"0":"zero"}'),
    *(
        '["zero"]',
        '[["x"]]',
        '{"a b":1}',
        '{"x":1.50}',
        '{"k":"\\u0041"}',
        '{"a":null}',
        "[null]",
        '{"":3}',
        '{"a.b":4}',
    ),
    *("[1,[2,[3]]]", '{"-1":"last"}', '{"+1":1}', '{" 1":1}', '{"%":"percent"}', '{"it\'s":1}', '{"a\\u0000b":5}'),
)
PATHS = (
    *(
        ("v",),
        ("a",),
        ("v", "a"),
        ("v", "0"),
        ("v", "00"),
        ("v", "1"),
        ("v", "-1"),
        ("v", "+1"),
        ("v", " 1"),
        ("v", ""),
    ),
    *(("v", "a", "b"), ("v", "b", "1"), ("v", "1", "1", "0"), ("v", "a b"), ("v", "a.b"), ("v", "%"), ("v", "it's")),
    *(("v", "x"), ("v", "k"), ("v", "0", "0"), ("v", "a\x00b"), ("v", "9999999999")),
)
READINGS = ("text", "integer", "double", "boolean", "size", "exists")

table = sa.Table(
    "documents", sa.MetaData(), sa.Column("number", sa.Integer, primary_key=True), sa.Column("document", sa.Text)
)
document = table.c.document
INSIDE = JsonRead(document, ("v",), "text")


@pytest.fixture(scope="module")
def both(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connections]:
    """The documents `{"v": value}` in SQLite and in PostgreSQL."""
    path = tmp_path_factory.mktemp("documents") / "documents.db"
    address = postgres.new_database()
    migrate(address)
    engine = connect(address, 1, "READ COMMITTED", 30)
    writer = open_writer(path, "normal", 0)
    with engine.connect() as connection:
        for each in (writer.control, connection):
            table.create(each)
            rows = [{"number": number, "document": f'{{"v":{value}}}'} for number, value in enumerate(VALUES)]
            each.execute(table.insert(), rows)
            each.commit()
        reader = open_reader(path)
        yield reader.control, connection
        reader.close()
    writer.close()
    engine.dispose()


def compare(both: Connections, expression: sa.ColumnElement[Any]) -> None:
    """An expression has the same value for every document in both databases."""
    query = sa.select(expression).select_from(table).order_by(table.c.number)
    ours, theirs = ([row[0] for row in connection.execute(query)] for connection in both)
    differing = [(value, *pair) for value, *pair in zip(VALUES, ours, theirs, strict=True) if pair[0] != pair[1]]
    assert differing == []


def written(write: Callable[..., str], *sources: sa.ColumnElement[Any]) -> Written:
    """An expression that the dialects write."""
    return Written(write, *sources, kind=sa.types.NullType())


def spelled(number: sa.ColumnElement[Any], kind: Kind) -> Written:
    """A number or an instant as text."""
    return Written(lambda dialect, text: dialect.spelled(text, kind), number, kind=sa.Text())


@pytest.mark.parametrize("reading", READINGS)
def test_a_value_at_a_path(both: Connections, reading: str) -> None:
    for path in PATHS:
        compare(both, JsonRead(document, path, reading))


@pytest.mark.parametrize("reading", ["integer", "double", "boolean"])
def test_a_text_that_is_read_anew(both: Connections, reading: str) -> None:
    compare(both, written(lambda dialect, text: dialect.reread(text, reading), INSIDE))


def test_numbers_spelled_out(both: Connections) -> None:
    """Apart from those beyond the precision with which SQLite prints."""
    number = JsonRead(document, ("v",), "double")
    compare(both, sa.case((sa.func.abs(number) < 10**15, spelled(number, Kind.NUMBER)), else_=""))


@pytest.mark.parametrize("micros", INSTANTS)
def test_an_instant_spelled_out(both: Connections, micros: int) -> None:
    query = sa.select(spelled(sa.literal(micros, sa.BigInteger()), Kind.INSTANT))
    assert [connection.execute(query).scalar_one() for connection in both] == [times.to_iso(micros)] * 2


def test_parts_of_texts_and_lists(both: Connections) -> None:
    compare(both, written(lambda dialect, text: dialect.lowered(text, False), INSIDE))

    def inside(dialect: Dialect, whole: str, part: str) -> str:
        return f"CASE WHEN {contained(dialect, whole, part, False)} THEN 1 ELSE 0 END"

    for part in ("", "a", "Ä", "%", '"', "\x00"):
        compare(both, written(inside, INSIDE, sa.literal(part, sa.Text())))


def test_members_of_lists(both: Connections) -> None:

    def is_member(folded: bool, dialect: Dialect, texts: str, item: str) -> str:
        return f"CASE WHEN {dialect.has_member(texts, item, folded)} THEN 1 ELSE 0 END"

    for texts in ('["a","B","Ä"]', "[]", '["%","\\u0041"]'):
        for item in ("a", "b", "B", "ä", "A", "%"):
            for folded in (False, True):
                listed, one = sa.literal(texts, sa.Text()), sa.literal(item, sa.Text())
                compare(both, written(partial(is_member, folded), listed, one))


def test_ends_of_texts(both: Connections) -> None:
    ends = {"Zoo": True, "zoo": False, "Zo_": False, "oo": True, "a.Zoo": True, "aa.Zoo": False, ".%": False}
    cases = [("a.Zoo", end, is_end) for end, is_end in ends.items()]
    cases += [
        ("", "a", False),
        ("a\x00.b", ".b", True),
        ("a.\x00b", ".\x00b", True),
        ("ä.É", ".É", True),
        ("É", "é", False),
    ]
    for whole, end, is_end in cases:
        query = sa.select(sa.case((Ending(sa.literal(whole, sa.Text()), end), 1), else_=0))
        assert [connection.execute(query).scalar_one() for connection in both] == [is_end] * 2, (whole, end)


def test_order_by_code_points(both: Connections) -> None:
    query = sa.select(table.c.number).order_by(CodePoints(INSIDE), table.c.number)
    ours, theirs = ([row[0] for row in connection.execute(query)] for connection in both)
    assert ours == theirs


def test_zero_characters(both: Connections) -> None:
    """Where SQLite ends a text early, PostgreSQL reads all of it."""
    _, connection = both
    text = JsonRead(sa.literal('{"v":"\\u0000a\\u0000\\\\u0000"}', sa.Text()), ("v",), "text")
    assert connection.execute(sa.select(text)).scalar_one() == "\x00a\x00\\u0000"
    assert connection.execute(sa.select(text == sa.literal("\x00a\x00\\u0000", sa.Text()))).scalar_one() is True
    size = JsonRead(sa.literal('{"v":"\\u0000a"}', sa.Text()), ("v",), "size")
    assert connection.execute(sa.select(size)).scalar_one() == 2
    whole = JsonRead(sa.literal('{"v":["\\u0000"]}', sa.Text()), ("v",), "text")
    assert connection.execute(sa.select(whole)).scalar_one() == '["\\u0000"]'


ODD_IDS = (
    "a",
    "a\x00",
    "a\x00b",
    "\x00",
    "",
    "\U0010ffff",
    "\U0010ffff0",
    "\U0010ffff1\x00",
    "\\u0000",
    "\\\x00",
    "ä",
    "'",
)


@pytest.mark.parametrize("one", ODD_IDS)
def test_one_of_a_list_is_found_exactly(both: Connections, one: str) -> None:
    others = [item for item in ODD_IDS if item != one]
    prepared = Prepared(sa.select(sa.case((Listed(sa.bindparam("one", type_=sa.Text()), "items"), 1), else_=0)))
    for connection in both:
        for items, is_listed in ((list(ODD_IDS), 1), (others, 0), ([one], 1)):
            query = sa.select(sa.case((Listed(sa.literal(one, sa.Text()), items), 1), else_=0))
            assert connection.execute(query).scalar_one() == is_listed, items
            assert prepared(connection, one=one, items=items).scalar_one() == is_listed, items


def test_numbers_keep_all_their_digits(both: Connections) -> None:
    source = sa.literal('{"v":9007199254740993,"w":0.5,"x":1e22}', sa.Text())
    number = JsonRead(source, ("v",), "number")
    for connection in both:
        assert connection.execute(sa.select(number)).scalar_one() == 9007199254740993
    for path, found in (("w", 0.5), ("x", 1e22)):
        other = JsonRead(source, (path,), "number")
        assert [connection.execute(sa.select(other)).scalar_one() for connection in both] == [found, found]
