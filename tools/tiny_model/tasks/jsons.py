"""JSON: made from pairs, read, and invented with short values."""

import json
from random import Random
from typing import Any

from tools.tiny_model.tasks.turn import Turn, letters, listing, turn
from tools.tiny_model.words import CITIES, COLOURS, KEYS, NAMES, WORDS

COMPACT = (",", ":")


def written(value: Any, compact: bool) -> str:
    """JSON text, with or without spaces."""
    return json.dumps(value, separators=COMPACT if compact else None)


def scalar(random: Random) -> Any:
    """A short value of any scalar type."""
    kind = random.random()
    if kind < 0.35:
        return random.choice(WORDS) if random.random() < 0.6 else letters(random, 1, 5)
    if kind < 0.7:
        return random.randint(0, 99)
    if kind < 0.85:
        return random.random() < 0.5
    return None if kind < 0.9 else round(random.uniform(-9, 99), 1)


def plain(value: Any) -> str:
    """How a value is named in a question: strings bare, the rest as in JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def keys(random: Random, low: int, high: int) -> list[str]:
    """Distinct keys, mostly usual ones."""
    found = random.sample((*KEYS, *WORDS) if random.random() < 0.4 else KEYS, random.randint(low, high))
    if random.random() < 0.2:
        found[0] = letters(random, 1, 5)
    return found


def pairs(random: Random) -> Turn:
    values = {key: scalar(random) for key in keys(random, 1, 3)}
    return asked(random, "JSON with " + listing([f"{key} = {plain(value)}" for key, value in values.items()]), values)


def array(random: Random) -> Turn:
    values = [scalar(random) for _ in range(random.randint(1, 4))]
    return asked(random, "a JSON array of " + listing([plain(value) for value in values]), values)


def nested(random: Random) -> Turn:
    inner = {key: scalar(random) for key in keys(random, 1, 2)}
    outer = random.choice(KEYS)
    content = listing([f"{key} = {plain(value)}" for key, value in inner.items()])
    return asked(random, f"JSON with {outer} holding {content}", {outer: inner})


def asked(random: Random, what: str, value: Any) -> Turn:
    """`Make <what>`, compact or not."""
    compact = random.random() < 0.3
    verb = random.choice(("Make", "Write", "Give me"))
    if compact:
        what = what.replace("JSON", "compact JSON", 1)
    return turn(f"{verb} {what}", written(value, compact), "json", f"I write {'compact ' if compact else ''}JSON.")


def read_value(random: Random) -> Turn:
    values = {key: scalar(random) for key in keys(random, 2, 3)}
    key = random.choice(list(values))
    text = written(values, random.random() < 0.3)
    forms = (f"What is {key} in {text}?", f"Read {key} from {text}")
    return turn(random.choice(forms), plain(values[key]), key, f"I look for {key}.")


def invented(random: Random, key: str, depth: int = 0) -> Any:
    """A short value that suits a key; lists and objects get rarer with depth."""
    if depth < 2 and random.random() < 0.15:
        return {name: invented(random, name, depth + 1) for name in keys(random, 1, 3)}
    if (key in ("tags", "items", "list", "data") and random.random() < 0.7) or random.random() < 0.05:
        return [invented(random, "value", depth + 2) for _ in range(random.choice((0, 1, 1, 2, 2, 3)))]
    if random.random() < 0.25:
        return scalar(random)
    if key in ("name", "user", "first", "last", "title"):
        return random.choice(NAMES)
    if key in ("age", "count", "id", "size", "total", "level", "code", "x", "y", "width", "height"):
        return random.randint(0, 99)
    if key in ("price", "score"):
        return round(random.uniform(0, 20), 1)
    if key in ("active",):
        return random.random() < 0.5
    return random.choice({"city": CITIES, "color": COLOURS}.get(key, WORDS))


def invent(random: Random) -> Turn:
    """Free JSON: many right answers, all of them short; trained for sampling, not for one answer."""
    names = keys(random, 1, 4)
    values: Any = {name: invented(random, name) for name in names}
    forms = [
        f"Make JSON with the keys {listing(names)}.", f"Invent {listing(names)} as JSON.", "Give me JSON.",
        "Give me a random record.", f"Describe a {random.choice(WORDS)} as JSON.", "Answer in JSON.",
        f"Tell me about {random.choice(NAMES)} in JSON.", "Make some data.", "Give me an example.",
    ]  # fmt: skip
    question = random.choice(forms)
    if question in ("Make some data.", "Give me an example.") and random.random() < 0.4:
        values = [values] if random.random() < 0.5 else [scalar(random) for _ in range(random.randint(0, 3))]
    return turn(question, written(values, random.random() < 0.25), "json", "I write JSON.")
