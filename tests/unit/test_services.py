"""What routes ask for is among the services, with the type that they expect."""

import re
from typing import get_type_hints

from starlette.routing import Match

from heddle.app import served_routes
from heddle.first_routes import first_routes
from heddle.http.routing import Route, Service, dependency
from heddle.http.state import ServerState
from heddle.services import Services


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


def test_hot_and_local_routes_are_there_from_the_start() -> None:
    first = first_routes()
    needed = [route for route in served_routes() if route.is_hot or route.is_local]
    assert [route.path for route in needed if route not in first] == []
    assert len(needed) > 20


def test_first_routes_take_no_request_of_a_later_one() -> None:
    def find(routes: list[Route], method: str, path: str) -> Route | None:
        scope = {"type": "http", "method": method, "path": path}
        return next((route for route in routes if route.matches(scope)[0] is Match.FULL), None)

    first, served, asked = first_routes(), served_routes(), 0
    for route in served:
        path = re.sub(r"{\w+(:path)?}", "x", route.path)
        for method in route.methods:
            found = find(served, method, path)
            assert find(first, method, path) is (found if found in first else None), (method, path)
            asked += 1
    assert asked > 250
