"""The API of Langfuse over HTTP: keys and projects, prompts, and what is not offered."""

import json
from typing import Any

import httpx
import pytest

from tests.conftest import API_KEY, Wire

Json = dict[str, Any]
PROMPTS = "/api/public/v2/prompts"


@pytest.fixture
def langfuse(wire: Wire) -> httpx.Client:
    """A client whose public key is the project."""
    return httpx.Client(base_url=wire.url, auth=(wire.project, API_KEY), timeout=60)


def ask(client: httpx.Client, method: str, path: str, status: int = 200, **sent: Any) -> Any:
    """The answer, which must have that status."""
    answer = client.request(method, path, **sent)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def create(client: httpx.Client, name: str, prompt: Any, **more: Any) -> Json:
    """A new version."""
    return dict(ask(client, "POST", PROMPTS, 201, json={"name": name, "prompt": prompt, **more}))


def test_keys_name_the_project(wire: Wire) -> None:
    def project(public: str, **headers: str) -> str:
        client = httpx.Client(base_url=wire.url, auth=(public, API_KEY), headers=headers)
        [found] = ask(client, "GET", "/api/public/projects")["data"]
        assert found["id"] == f"{found['organization']['id']}/{found['name']}"
        return str(found["id"])

    assert project("team/app") == "team/app"
    assert project("team/app", project_id="other/one") == "other/one"
    # Any other public key is a project of the key's entity.
    assert project("pk-lf-1").partition("/")[2] == "pk-lf-1"
    nameless = httpx.get(wire.url + "/api/public/projects", headers={"authorization": f"Bearer {API_KEY}"})
    assert nameless.status_code == 400
    assert nameless.json()["error"] == "InvalidRequestError" and "public key" in nameless.json()["message"]
    assert httpx.get(wire.url + "/api/public/health").json()["status"] == "OK"


def test_versions_and_labels(langfuse: httpx.Client) -> None:
    first = create(langfuse, "greet", "Hi {{name}}", labels=["production"], config={"t": 1}, commitMessage="one")
    assert (first["version"], first["type"], first["labels"]) == (1, "text", ["latest", "production"])
    assert (first["config"], first["commitMessage"], first["prompt"]) == ({"t": 1}, "one", "Hi {{name}}")
    again = create(langfuse, "greet", "Hi {{name}}", labels=["latest", "blue"])
    assert (again["version"], again["labels"]) == (2, ["blue", "latest"]), "the same text is a version too"
    assert ask(langfuse, "GET", f"{PROMPTS}/greet")["version"] == 1
    assert ask(langfuse, "GET", f"{PROMPTS}/greet", params={"label": "blue"})["version"] == 2
    assert ask(langfuse, "GET", f"{PROMPTS}/greet", params={"version": 1})["labels"] == ["production"]
    moved = ask(langfuse, "PATCH", f"{PROMPTS}/greet/versions/2", json={"newLabels": ["production"]})
    assert moved["labels"] == ["blue", "latest", "production"]
    assert ask(langfuse, "GET", f"{PROMPTS}/greet")["version"] == 2
    for query in ({"version": 3}, {"label": "none"}, {"label": "v0"}):
        missing = ask(langfuse, "GET", f"{PROMPTS}/greet", 404, params=query)
        assert missing["error"] == "LangfuseNotFoundError" and "greet" in missing["message"]
    ask(langfuse, "DELETE", f"{PROMPTS}/greet", 204, params={"version": 1})
    assert ask(langfuse, "GET", PROMPTS)["data"][0]["versions"] == [2]
    ask(langfuse, "DELETE", f"{PROMPTS}/greet", 204)
    assert ask(langfuse, "GET", PROMPTS) == {
        "data": [],
        "meta": {"page": 1, "limit": 50, "totalItems": 0, "totalPages": 0},
    }


def test_weave_reads_what_langfuse_writes_and_the_other_way_round(wire: Wire, langfuse: httpx.Client) -> None:
    create(langfuse, "a/b c", 'Hi {{name}}, {"json": 1}, {{ spaced }}')
    [stored] = wire.objects()
    assert stored["base_object_class"] == "Prompt" and stored["leaf_object_class"] == "StringPrompt"
    assert stored["val"]["content"] == 'Hi {name}, {{"json": 1}}, {{{{ spaced }}}}'
    path = f"{PROMPTS}/a%2Fb%20c"
    found = ask(langfuse, "GET", path, params={"label": "latest"})
    assert (found["name"], found["prompt"]) == ("a/b c", 'Hi {{name}}, {"json": 1}, {{ spaced }}')
    classes = {"_type": "MessagesPrompt", "_class_name": "MessagesPrompt", "_bases": ["Prompt", "Object", "BaseModel"]}
    messages = [{"role": "system", "content": "Be {tone}, {{always}}"}]
    value = {**classes, "name": None, "description": None, "messages": messages}
    wire.client.post("/obj/create", json={"obj": {"project_id": wire.project, "object_id": "tone", "val": value}})
    ours = ask(langfuse, "GET", f"{PROMPTS}/tone", params={"version": 1})
    assert (ours["name"], ours["type"], ours["labels"]) == ("tone", "chat", ["latest"])
    assert ours["prompt"] == [{"role": "system", "content": "Be {{tone}}, {always}"}]
    assert [item["name"] for item in ask(langfuse, "GET", PROMPTS)["data"]] == ["a/b c", "tone"]
    create(langfuse, "..", "No object can have this name")
    assert [item["name"] for item in ask(langfuse, "GET", PROMPTS)["data"]] == ["..", "a/b c", "tone"]


def test_chat_prompts_with_placeholders_and_other_prompts(langfuse: httpx.Client) -> None:
    create(langfuse, "rules", "No {{thing}}.", labels=["production"])
    create(langfuse, "head", "@@@langfusePrompt:name=rules|version=1@@@ Ever.", labels=["production"])
    content = [
        {"role": "system", "content": "Rules: @@@langfusePrompt:name=head|label=production@@@"},
        {"type": "placeholder", "name": "history"},
        {"role": "user", "content": [{"type": "text", "text": "{{question}} {x}"}]},
    ]
    made = create(langfuse, "chat", content, type="chat", labels=["production"])
    assert made["prompt"] == content and made["resolutionGraph"] is None
    found = ask(langfuse, "GET", f"{PROMPTS}/chat")
    assert found["prompt"] == [{"role": "system", "content": "Rules: No {{thing}}. Ever."}, *content[1:]]
    assert {item["name"] for item in found["resolutionGraph"]["resolvedPrompts"].values()} == {"rules", "head"}
    assert ask(langfuse, "GET", f"{PROMPTS}/chat", params={"resolve": "false"})["prompt"] == content
    create(langfuse, "self", "@@@langfusePrompt:name=self|label=latest@@@", labels=["production"])
    create(langfuse, "lost", "@@@langfusePrompt:name=gone|version=1@@@", labels=["production"])
    create(langfuse, "far", f"@@@langfusePrompt:name=head|version={'9' * 5000}@@@", labels=["production"])
    for name, said in (
        ("self", "refers to itself"),
        ("lost", "dependency not found"),
        ("far", "does not specify a version"),
    ):
        assert said in ask(langfuse, "GET", f"{PROMPTS}/{name}", 400)["message"]


def test_tags_are_those_of_the_prompt(langfuse: httpx.Client) -> None:
    create(langfuse, "p", "1", tags=["b", "a"])
    assert create(langfuse, "p", "2")["tags"] == ["a", "b"]
    create(langfuse, "p", "3", tags=["c"])
    tags = [ask(langfuse, "GET", f"{PROMPTS}/p", params={"version": n})["tags"] for n in (1, 2, 3)]
    assert tags == [["c"], ["c"], ["c"]]
    create(langfuse, "q", "1", labels=["production"])

    def names(**query: Any) -> list[str]:
        return [item["name"] for item in ask(langfuse, "GET", PROMPTS, params=query)["data"]]

    assert names(tag="c") == ["p"] and names(tag="a") == []
    assert names(label="production") == ["q"] and names(name="p") == ["p"]
    assert names(limit=1) == ["p"] and names(limit=1, page=2) == ["q"] and names(page=3) == []
    assert names(fromUpdatedAt="2100-01-01T00:00:00Z") == [] and names(toUpdatedAt="2100-01-01T00:00:00Z") == ["p", "q"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"name": "p"}, "prompt"),
        ({"name": "", "prompt": "x"}, "name"),
        ({"name": "p", "prompt": 5}, "prompt"),
        ({"name": "p", "prompt": "x", "type": "chat"}, "list of messages"),
        ({"name": "p", "prompt": [{"content": "x"}]}, "prompt.0"),
        ({"name": "p", "prompt": "x", "labels": ["a/b"]}, "labels"),
        ({"name": "p", "prompt": "x", "labels": ["v1"]}, "labels"),
        ({"name": "p", "prompt": "x", "tags": ["?"]}, "tags"),
        ({"name": "taken", "prompt": "x"}, "not a prompt"),
        ({"name": "text", "prompt": [{"role": "user", "content": "x"}]}, "different prompt type"),
    ],
)
def test_what_is_refused_stores_nothing(wire: Wire, langfuse: httpx.Client, body: Json, said: str) -> None:
    wire.client.post("/obj/create", json={"obj": {"project_id": wire.project, "object_id": "taken", "val": 1}})
    create(langfuse, "text", "x")
    before = wire.objects()
    refused = ask(langfuse, "POST", PROMPTS, 400, json=body)
    assert said in json.dumps(refused), refused
    assert wire.objects() == before


def test_refused_questions(langfuse: httpx.Client) -> None:
    create(langfuse, "p", "x")
    for query in ({"version": 1, "label": "latest"}, {"version": 0}, {"version": "x"}, {"page": 1}):
        ask(langfuse, "GET", f"{PROMPTS}/p", 400, params=query)
    for query in ({"limit": 0}, {"limit": 101}, {"nonsense": 1}, {"fromUpdatedAt": "x"}):
        ask(langfuse, "GET", PROMPTS, 400, params=query)
    for labels in (["latest"], ["a:b"], "x"):
        ask(langfuse, "PATCH", f"{PROMPTS}/p/versions/1", 400, json={"newLabels": labels})
    ask(langfuse, "PATCH", f"{PROMPTS}/p/versions/2", 404, json={"newLabels": ["blue"]})
    assert ask(langfuse, "GET", f"{PROMPTS}/p", params={"version": 1})["labels"] == ["latest"]


@pytest.mark.parametrize("method", ["GET", "POST", "PATCH", "DELETE"])
def test_what_is_not_offered_says_so(langfuse: httpx.Client, method: str) -> None:
    for path, said in (
        ("comments", "wandb.note.1"),
        ("unstable/skills", "docs/langfuse.md"),
        ("v2/evaluation-rules/x", "Monitor"),
    ):
        refused = ask(langfuse, method, f"/api/public/{path}", 404)
        # Without a code the SDK cannot read refusals of its newer interfaces.
        assert (refused["error"], refused["code"]) == ("LangfuseNotFoundError", "resource_not_found")
        assert f"{method} /api/public/{path}" in refused["message"] and said in refused["message"]
