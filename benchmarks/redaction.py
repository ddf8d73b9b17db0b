"""How much of 5,000 secrets planted in 10,000 texts redaction finds, how often it is wrong, and what a call costs.

python -m benchmarks.redaction
"""

import json
import random
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from heddle.wire.redaction import KINDS, RedactionRules, Redactor

TEXTS, SECRETS = 10_000, 5_000
_TEXT = """the order of a customer was late and she asked for her money back today version step total model answer
with temperature tokens prompt retry after seconds error timeout index page table row price invoice number"""
_WORDS = _TEXT.split()
_NAMES = ("ada", "grace.hopper", "l.torvalds", "mary_ann", "x9", "sales+eu", "no-reply")
_HOSTS = ("example.com", "mail.example.org", "uni-koeln.de", "acme.co.uk", "team.example.io")


LIKE = "at 2026-02-11T10:00:00.123456Z http://192.168.0.7:8470/a 0192f3a4-7b1c-7000-a000-000000000001 sk-1"
"""What a call often has, and detectors have to look at."""


class Sample(NamedTuple):
    """A text, and the secret that was planted in it with its kind, empty for none."""

    text: str
    kind: str = ""
    secret: str = ""


def _digits(chance: random.Random, count: int) -> str:
    return "".join(chance.choices(string.digits, k=count))


def _letters(chance: random.Random, count: int, more: str = "") -> str:
    return "".join(chance.choices(string.ascii_letters + string.digits + more, k=count))


def _email(chance: random.Random) -> str:
    return f"{chance.choice(_NAMES)}{chance.randrange(1000)}@{chance.choice(_HOSTS)}"


def _phone(chance: random.Random) -> str:
    area, rest, end = chance.randrange(201, 990), _digits(chance, 3), _digits(chance, 4)
    forms = (
        f"+1 {area} {rest} {end}",
        f"+1-{area}-{rest}-{end}",
        f"({area}) {rest}-{end}",
        f"{area}-{rest}-{end}",
        f"{area}.{rest}.{end}",
        f"+49 {chance.randrange(151, 180)} {_digits(chance, 8)}",
        f"+44 20 {_digits(chance, 4)} {end}",
        f"+33 {chance.randrange(1, 8)} {' '.join(_digits(chance, 2) for _ in range(4))}",
        f"+4915{_digits(chance, 9)}",
    )
    return chance.choice(forms)


def _card(chance: random.Random) -> str:
    start, length = chance.choice((("4", 16), ("51", 16), ("55", 16), ("2221", 16), ("37", 15), ("6011", 16)))
    body = start + _digits(chance, length - len(start) - 1)
    check = next(d for d in string.digits if _luhn(body + d))
    number, gap = body + check, chance.choice(("", " ", "-"))
    if length == 15:
        return gap.join((number[:4], number[4:10], number[10:]))
    return gap.join(number[at : at + 4] for at in range(0, length, 4))


def _luhn(number: str) -> bool:
    digits = [int(digit) for digit in reversed(number)]
    return sum(d if at % 2 == 0 else d * 2 - 9 * (d > 4) for at, d in enumerate(digits)) % 10 == 0


def _key(chance: random.Random) -> str:
    forms: tuple[Callable[[], str], ...] = (
        lambda: "sk-proj-" + _letters(chance, 48),
        lambda: "sk-ant-api03-" + _letters(chance, 60, "-_"),
        lambda: "AKIA" + "".join(chance.choices(string.ascii_uppercase + string.digits, k=16)),
        lambda: "ghp_" + _letters(chance, 36),
        lambda: "glpat-" + _letters(chance, 20),
        lambda: "xoxb-" + _digits(chance, 11) + "-" + _letters(chance, 24),
        lambda: "AIza" + _letters(chance, 35),
        lambda: "hf_" + _letters(chance, 34),
        lambda: "sk_live_" + _letters(chance, 24),
        lambda: f"eyJ{_letters(chance, 20)}.eyJ{_letters(chance, 40)}.{_letters(chance, 43, '-_')}",
        lambda: f"password={_letters(chance, 12)}",
        lambda: f"api_key: {_letters(chance, 32)}",
        lambda: f"postgresql://app:{_letters(chance, 16)}@db.internal/app",
    )
    return chance.choice(forms)()


PLANTERS = {"email": _email, "phone": _phone, "card": _card, "key": _key}


def _harmless(chance: random.Random) -> str:
    """What looks a little like a secret."""
    forms: tuple[Callable[[], str], ...] = (
        lambda: f"1795{_digits(chance, 6)}.{_digits(chance, 3)}",
        lambda: f"1795{_digits(chance, 12)}",
        lambda: "-".join((_digits(chance, 8), _digits(chance, 4), f"4{_digits(chance, 3)}", _digits(chance, 12))),
        lambda: f"2026-0{chance.randrange(1, 10)}-11T10:{chance.randrange(10, 60)}:00.{_digits(chance, 6)}Z",
        lambda: f"v{chance.randrange(20)}.{chance.randrange(20)}.{chance.randrange(20)}",
        lambda: f"192.168.{chance.randrange(256)}.{chance.randrange(256)}:8470",
        lambda: f"0.{_digits(chance, 16)}",
        lambda: f"max_tokens: {chance.randrange(100, 9000)}",
        lambda: f"@{chance.choice(_WORDS)} see #{chance.randrange(10_000)}",
        lambda: f"order {_digits(chance, 10)}",
        lambda: f"sha256:{''.join(chance.choices('0123456789abcdef', k=64))}",
        lambda: f"weave:///team/app/object/words:{_letters(chance, 43)}",
    )
    return chance.choice(forms)()


def samples(seed: int = 7) -> Iterator[Sample]:
    """10,000 texts, of which every other has one secret."""
    chance = random.Random(seed)
    for number in range(TEXTS):
        words = chance.choices(_WORDS, k=chance.randrange(10, 60))
        words.insert(chance.randrange(len(words)), _harmless(chance))
        if number % (TEXTS // SECRETS):
            yield Sample(" ".join(words))
            continue
        kind = KINDS[number // (TEXTS // SECRETS) % len(KINDS)]
        secret = PLANTERS[kind](chance)
        words.insert(chance.randrange(len(words)), secret)
        yield Sample(" ".join(words), kind, secret)


def measure() -> dict[str, Counter[str]]:
    """Per kind how many were planted and found, and how many were found where none is."""
    found: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    for sample in samples():
        redactor = Redactor(RedactionRules(KINDS))
        text = redactor.text(sample.text)
        held = sample.secret.rpartition("=")[2].rpartition(": ")[2]
        for kind in KINDS:
            found[kind]["planted"] += kind == sample.kind
            found[kind]["found"] += kind == sample.kind and redactor.found[kind] == 1 and held not in text
            found[kind]["wrong"] += redactor.found[kind] - (kind == sample.kind and redactor.found[kind] > 0)
    return found


def cost_of_call(planted: str = "", rounds: int = 2000) -> float:
    """Microseconds of CPU of redaction of a call with 2 kB of inputs and output, each with this planted text."""
    chance = random.Random(3)
    said = f"{' '.join(chance.choices(_WORDS, k=75))} {planted} {' '.join(chance.choices(_WORDS, k=75))}"
    inputs = json.dumps({"messages": [{"role": "user", "content": said}], "temperature": 0.2, "seed": 1795000000})
    output = json.dumps({"choices": [{"message": {"content": said}}], "usage": {"total_tokens": 512}})
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(rounds):
            redactor = Redactor(RedactionRules(KINDS))
            redactor.json(inputs, "inputs")
            redactor.json(output, "output")
        best = min(best, (time.process_time() - began) / rounds)
    return best * 1e6


if __name__ == "__main__":
    print("kind    planted  found  wrong  recall  precision")
    for name, counts in measure().items():
        recall, right = counts["found"] / counts["planted"], counts["found"]
        precision = right / (right + counts["wrong"])
        print(f"{name:7} {counts['planted']:7} {right:6} {counts['wrong']:6} {recall:7.3f} {precision:10.3f}")
    print(f"a call of 2 kB: {cost_of_call():.0f} µs, with a time, an address and an id: {cost_of_call(LIKE):.0f} µs")
    for name, plant in PLANTERS.items():
        print(f"a call of 2 kB with two of {name}: {cost_of_call(plant(random.Random(1))):.0f} µs")
