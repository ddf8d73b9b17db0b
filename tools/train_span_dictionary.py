"""Make src/heddle/store/sqlite/span_dictionary.zdict: what dumps of spans have in common, for zstd.

    python -m tools.train_span_dictionary

Learned from the recorded exports in tests/data/otel, with other ids and times in each of many seeded copies, so that
keys, names of libraries and words of the conventions remain. Stored dumps need the dictionary that they were packed
with: a better one gets a name and a format byte of its own.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path

import zstandard

from heddle.store.sqlite.call_bodies import reduce
from heddle.trace.calls.packing import Packer
from heddle.trace.otel.packing import SpanPacker, setting_of
from heddle.trace.otel.signals import decode_spans

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "src/heddle/store/sqlite/span_dictionary.zdict"
SIZE, COPIES = 16 * 1024, 40
_CHANGING = re.compile(r"[0-9a-f]{16,32}|\d{4}-\d\d-\d\dT[0-9:.]+Z|\d{3,}|\"[^\"]{200,}\"")


def dumps() -> Iterator[str]:
    """What would be compressed of each recorded span."""
    for path in sorted((ROOT / "tests/data/otel").iterdir()):
        packer = Packer(lambda project: project, "user", 1 << 30)
        spans = SpanPacker(packer)
        for group in decode_spans(path.read_bytes(), path.suffix == ".json"):
            for span in group.items:
                spans.add(span, setting_of("project", "user", group.resource.attributes, group.resource.dropped))
        yield from (reduce(start.otel_dump or "", start.shared) for start in packer.packed.starts)


def vary(dump: str, chance: random.Random) -> bytes:
    """The dump with other ids, times and numbers, and without long texts."""

    def other(match: re.Match[str]) -> str:
        found = match[0]
        if found.startswith('"'):
            return '""'
        return "".join(
            chance.choice("0123456789abcdef")
            if letter in "abcdef"
            else str(chance.randrange(10))
            if letter.isdigit()
            else letter
            for letter in found
        )

    return _CHANGING.sub(other, dump).encode()


def main() -> None:
    """Write the file."""
    chance = random.Random(1)
    samples = [vary(dump, chance) for dump in dumps() for _ in range(COPIES)]
    chance.shuffle(samples)
    found = zstandard.train_dictionary(SIZE, samples, level=3)
    TARGET.write_bytes(found.as_bytes())
    print(f"{TARGET.relative_to(ROOT)}: {len(found.as_bytes())} bytes of {len(samples)} samples")


if __name__ == "__main__":
    main()
