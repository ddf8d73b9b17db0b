"""What routes ask for is among the services, with the type that they expect."""

from typing import get_type_hints

from heddle.app import served_routes
from heddle.http.routing import Service, dependency
from heddle.http.state import ServerState
from heddle.services import Services
from heddle.web_workers.routes import local_routes


def test_each_dependency_is_a_service_of_its_type() -> None:
    types, shared = get_type_hints(Services), get_type_hints(ServerState)
    asked = [
        (found.name, hint.__origin__, route.is_local)
        for route in served_routes()
        for hint in get_type_hints(route.endpoint, include_extras=True).values()
        if isinstance(found := dependency(hint), Service)
    ]
    assert [(name, kind) for name, kind, _ in asked if types.get(name) != kind] == []
    assert {name for name, _, is_local in asked if is_local} <= set(shared), "a worker has no other services"
    assert len(asked) > 200


def test_workers_know_every_local_route() -> None:
    local = [route for route in served_routes() if route.is_local]
    assert local_routes() == local
    assert len(local) > 15
