"""Which project a resource belongs to: each source, and which of them wins."""

from typing import Any

import pytest

from heddle.auth import LOCAL, Caller, Grant
from heddle.settings import Settings
from heddle.trace.otel.export import ProjectResolver

PAIR = {"wandb.entity": "pair", "wandb.project": "resource"}
BOUND = Caller("ann", (Grant.parse("write:team/bound"),))
ENTITY = Caller("ann", (Grant.parse("write:team"),))


@pytest.mark.parametrize(
    ("resource", "caller", "header", "default", "found"),
    [
        ({**PAIR, "service.name": "svc"}, BOUND, "h/h", "d/d", "pair/resource"),
        ({"wandb.entity": "pair", "service.name": "svc"}, BOUND, "h/h", "d/d", "h/h"),
        ({"wandb.project": "alone", "service.name": "svc"}, ENTITY, "h/h", "d/d", "h/h"),
        ({"wandb.project": "alone", "service.name": "svc"}, ENTITY, "", "d/d", "team/alone"),
        ({"wandb.project": "own/whole", "service.name": "svc"}, ENTITY, "", "d/d", "own/whole"),
        ({"openinference.project.name": "phoenix app"}, LOCAL, "", "d/d", "local/phoenix app"),
        ({"service.name": "svc"}, BOUND, "", "d/d", "team/bound"),
        ({"service.name": "svc"}, ENTITY, "", "d/d", "team/svc"),
        ({"service.name": " pay/ments: v1\n"}, LOCAL, "", "d/d", "local/pay-ments- v1"),
        ({"service.name": ".."}, LOCAL, "", "d/d", "local/unknown_service"),
        ({"service.name": "x" * 900}, LOCAL, "", "", "local/" + "x" * 200),
        ({"service.name": "unknown_service"}, LOCAL, "", "d/d", "d/d"),
        ({"service.name": "unknown_service:python3"}, LOCAL, "", "d/d", "d/d"),
        ({"service.name": "unknown_service:node"}, LOCAL, "", "", "local/unknown_service"),
        ({}, LOCAL, "", "d/d", "d/d"),
        ({}, BOUND, "", "", "team/bound"),
        ({}, ENTITY, "", "", None),
        ({"service.name": ""}, LOCAL, "", "", None),
        ({"service.name": 5, "wandb.project": ["x"]}, LOCAL, "", "", None),
    ],
)
def test_the_first_that_names_a_project_wins(
    resource: dict[str, Any], caller: Caller, header: str, default: str, found: str | None
) -> None:
    settings = Settings(default_project=default or "none")
    assert ProjectResolver.of({"project_id": header}, caller, settings).resolve(resource) == found
    assert found is None or caller is not LOCAL or caller.open(found)
