"""A seeded session: a list of operations over one project."""

import random
from collections.abc import Callable

from tests.conformance.differential import calls, objects, records
from tests.conformance.differential.operations import Operation, World

# (how often, what); the first group fills the project, the second asks about it.
WRITES: list[tuple[int, Callable[[World], None]]] = [
    (10, calls.write_complete),
    (6, calls.write_start_end),
    (3, calls.write_v2),
    (3, calls.write_batch),
    (2, calls.write_late_end),
    (1, calls.write_again),
    (2, calls.update),
    (1, calls.delete),
    (6, objects.create),
    (1, objects.delete),
    (2, objects.tags),
    (2, objects.aliases),
    (2, objects.table),
    (8, records.create),
    (1, records.purge),
    (1, records.replace),
    (2, records.cost_create),
    (1, records.cost_purge),
]
READS: list[tuple[int, Callable[[World], None]]] = [
    (40, calls.stream_query),
    (6, calls.expanded_query),
    (2, calls.read),
    (4, calls.query_stats),
    (4, calls.usage),
    (3, calls.stats),
    (3, calls.threads),
    (4, objects.read),
    (4, objects.query),
    (1, objects.lists),
    (4, objects.refs),
    (4, objects.table_query),
    (7, records.query),
    (3, records.stats),
    (2, records.cost_query),
]


def generate(seed: int, count: int) -> list[Operation]:
    """The first `count` operations of the session of this seed."""
    world = World(random.Random(seed))
    world.names_feedback = world.chance(0.6)
    for make in (objects.create, objects.create, objects.table, calls.write_complete, calls.write_complete):
        make(world)
    while len(world.operations) < count:
        group = WRITES if world.chance(0.35) or len(world.calls) < 12 else READS
        weights = [weight for weight, _ in group]
        world.rng.choices([make for _, make in group], weights)[0](world)
    return world.operations[:count]
