"""The account questions that SDKs ask at start, as they spell them, and what comes back for anything else."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cli import make_key
from tests.support.server import HeddleProcess

PROJECT = (
    "query Project($name: String!, $entityName: String!) {\n"
    "  project(name: $name, entityName: $entityName) {\n    name\n  }\n}"
)
UPSERT = """mutation UpsertModel($name: String!, $id: String, $entity: String!, $description: String, $repo: String) {
  upsertModel(
    input: {id: $id, name: $name, entityName: $entity, description: $description, repo: $repo}
  ) { model { name description } }
}"""
VIEWER = "query DefaultEntity {\n  viewer {\n    username\n    defaultEntity {\n      name\n    }\n  }\n}"


def ask(url: str, query: str, key: str = "any", **variables: Any) -> dict[str, Any]:
    """The answer to one GraphQL request; always 200 and JSON."""
    body = {"query": query, "variables": variables} if variables else {"query": query}
    answer = httpx.post(url + "/graphql", json=body, auth=("api", key), timeout=30)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    return dict(answer.json())


def test_the_boot_sequence_of_a_new_project(server: HeddleProcess, project: str) -> None:
    entity, name = project.split("/")
    assert ask(server.url, PROJECT, name=name, entityName=entity) == {"data": {"project": None}}
    made = ask(server.url, UPSERT, name=name, entity=entity, description=None)
    assert made == {"data": {"upsertModel": {"model": {"name": name, "description": None}}}}
    assert ask(server.url, PROJECT, name=name, entityName=entity) == {"data": {"project": {"name": name}}}
    assert ask(server.url, VIEWER) == {"data": {"viewer": {"username": "local", "defaultEntity": {"name": "local"}}}}


@pytest.mark.parametrize("kind", ["call", "object"])
def test_a_project_that_was_written_to_exists(kind: str, server: HeddleProcess, project: str) -> None:
    entity, name = project.split("/")
    start = {
        "project_id": project,
        "op_name": "o",
        "started_at": "2026-01-01T00:00:00Z",
        "attributes": {},
        "inputs": {},
    }
    path, body = {
        "call": ("/call/start", {"start": start}),
        "object": ("/obj/create", {"obj": {"project_id": project, "object_id": "o", "val": 1}}),
    }[kind]
    assert httpx.post(server.url + path, json=body).status_code == 200
    assert ask(server.url, PROJECT, name=name, entityName=entity) == {"data": {"project": {"name": name}}}


def test_a_description_is_kept(server: HeddleProcess, project: str) -> None:
    entity, name = project.split("/")
    for given, kept in ((None, None), ("first", "first"), (None, "first"), ("second", "second")):
        made = ask(server.url, UPSERT, name=name, entity=entity, description=given)
        assert made["data"]["upsertModel"]["model"]["description"] == kept


def test_fields_can_be_renamed_and_literals_given(server: HeddleProcess, project: str) -> None:
    entity, name = project.split("/")
    query = f'{{ me: viewer {{ id who: username }} p: project(name: "{name}", entityName: "{entity}") {{ id }} }}'
    found = ask(server.url, query)["data"]
    assert found == {"me": {"id": "VXNlcjpsb2NhbA==", "who": "local"}, "p": None}
    assert (
        ask(server.url, "query ServerInfo { serverInfo { frontendHost } }")["data"]["serverInfo"]["frontendHost"]
        == server.url
    )


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("query Q { artifact(id: 1) { name } }", 'Cannot query field "artifact" on type "Query"'),
        ("mutation M { deleteEverything { ok } }", 'Cannot query field "deleteEverything" on type "Mutation"'),
        ("{ viewer { password } }", 'Cannot query field "password" on type "viewer"'),
        ("{ viewer }", 'Field "viewer" must have a selection of subfields.'),
        ("{ viewer {", "Syntax Error: Expected Name, found <EOF>"),
        ("", "Syntax Error: Unexpected <EOF>"),
        ("query { viewer { username } ; }", "Syntax Error: Unexpected character: ';'"),
        ("subscription { x }", "queries and mutations are served here"),
        ("{ project { name } }", "Argument 'name' is required"),
        ("{" + "a{" * 5000, "nested too deeply"),
        ("{ project(name: " + "[" * 5000 + ")", "nested too deeply"),
        ("{ project(name: " + "9" * 5000 + ") { name } }", "Argument 'name' is required"),
        ("{" + "a " * 5000 + "}", "more than 2000 tokens"),
        ("{ viewer { ...F } } fragment F on User { id }", "Fragments are not served here"),
        ("mutation { upsertModel { model { name } } }", "Argument 'input' of 'upsertModel' is required"),
        ('mutation { upsertModel(input: {name: "a/b", entityName: "c"}) { model { name } } }', "Invalid project_id"),
    ],
)
def test_what_is_not_understood_is_an_error_in_the_body(query: str, message: str, server: HeddleProcess) -> None:
    (error,) = ask(server.url, query)["errors"]
    assert message in error["message"]


def test_a_body_that_is_no_request_is_422(server: HeddleProcess) -> None:
    assert httpx.post(server.url + "/graphql", json={"text": "{}"}).status_code == 422


def test_with_keys_the_entity_is_the_keys_and_permissions_are_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    free, bound = make_key(data, "ann"), make_key(data, "bob", "--project", "team/one")
    reader = make_key(data, "eve", "--scope", "read", "--entity", "team")
    with HeddleProcess(data, auth="on") as process:
        assert httpx.post(process.url + "/graphql", json={"query": VIEWER}).status_code == 401
        for key, user, entity in ((free, "ann", "ann"), (bound, "bob", "team"), (reader, "eve", "team")):
            viewer = ask(process.url, VIEWER, key)["data"]["viewer"]
            assert viewer == {"username": user, "defaultEntity": {"name": entity}}
        assert "errors" not in ask(process.url, UPSERT, bound, name="one", entity="team", description=None)
        for key, name in ((bound, "two"), (reader, "one")):
            refused = ask(process.url, UPSERT, key, name=name, entity="team", description=None)
            assert refused["errors"][0]["extensions"] == {"code": "PERMISSION_ERROR"}
        assert ask(process.url, PROJECT, bound, name="two", entityName="team") == {"data": {"project": None}}
        access = "query Entity($entityName: String!) { viewer { username } entity(name: $entityName) { readOnly } }"
        assert ask(process.url, access, bound, entityName="team")["data"]["entity"] == {"readOnly": False}
        assert ask(process.url, access, reader, entityName="team")["data"]["entity"] == {"readOnly": True}
        assert ask(process.url, access, bound, entityName="other")["data"]["entity"] is None
