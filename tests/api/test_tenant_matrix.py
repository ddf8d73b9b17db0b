"""Every route, made from the routers, with every kind of key, about what is the caller's and what is not."""

import contextlib
import difflib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.inference.served_model import TINY, TINY_FOLDER
from heddle.wire.keys import read_scopes
from tests.support.chat import until
from tests.support.cli import make_key
from tests.support.models import make_adapter
from tests.support.patience import strain
from tests.support.selection import spread, with_breadth
from tests.support.server import HeddleProcess
from tests.support.tenant_requests import request_for
from tests.support.tenants import Asked, Asking, Seeding, Tenant, asked_routes

OWN, FOREIGN, SPARE = "teama/p1", "teamb/p1", "teamc/p1"
BOUND = {"project": f":{OWN}", "entity": ":teama"}
ROLES = ("viewer", "annotator", "editor", "admin", "write")
"""Those of people, and of services that send without reading."""
TWO = "two "
"""How the keys are called that are bound to two of the three projects: with a role in OWN, and as a viewer in SPARE."""
ROUTES = asked_routes()
NO_KEY, ANY_KEY = "no key", "any key"
SPECIAL = {
    "GET /files/download": 403,  # an address that was not signed
    "GET /api/v1/external_weights": 403,
    "GET /api/v1/training_runs/{run_id}/checkpoints/{segment}/{name}/external_weights_urls": 404,  # it is no folder
    "POST /_ui/session": 403,  # pages of the server only
    "DELETE /_ui/session": 403,
    "POST /_ui/sign_in": 403,
    "GET /_ui/sign_in/callback": 303,
    "POST /_ui/api/keys/{key_id}/restore": 400,  # it is no person
    "POST /inference/providers/{name}/test": 404,  # nobody entered it
    "POST /_ui/api/projects/example": 409,  # it holds calls
    "POST /_ui/api/projects/example/delete": 404,  # it is no example
    "POST /v1/preview/training-jobs/{job_id}/cancel": 409,  # it was given up already
    **{f"{method} /api/public/{{rest}}": 404 for method in ("GET", "POST", "PUT", "PATCH", "DELETE")},  # not offered
    "GET /{entity}/{project}/weave/{rest}": 404,  # there is such a page in a browser only
}
"""What a valid request of an operator is answered where that is no success."""
SERVER_WIDE = {
    "GET /_ui/api/storage": "not bound to a project",
    "GET /v1/limits": "not bound",
    "PUT /inference/providers/{name}": "not bound to a project",
    "DELETE /inference/providers/{name}": "not bound to a project",
    "POST /inference/providers/{name}/test": "not bound to a project",
    "PUT /v1/limits": "not bound",
}
"""Routes that no bound key may use, and what their refusal says."""
SENT_BACK = {"GET /{entity}/{project}/weave", "GET /{entity}/{project}/weave/{rest}"}
STREAMS = ("/live", "/stream")
MOST_BYTES = 1 << 20
QUIET = {"access_log": "off", "alert_interval": 86_400}


@dataclass
class Matrix:
    """A server with three tenants, and keys of every kind."""

    client: httpx.Client
    keys: dict[str, str]
    folder: Path
    own: Tenant
    foreign: Tenant
    spare: Tenant

    def headers(self, who: str) -> dict[str, str]:
        """Those of a request with one of the keys."""
        return {"authorization": f"Bearer {self.keys[who]}"}

    def post(self, who: str, path: str, body: Any) -> httpx.Response:
        """The answer to a POST with one of the keys."""
        return self.client.post(path, json=body, headers=self.headers(who))

    def ask(self, who: str, asked: Asking) -> tuple[int, str]:
        """Status and text (headers before it) of a request with one of the keys."""
        sent = {} if who == "none" else {"authorization": f"Bearer {self.keys[who]}"}
        body: dict[str, Any] = {"json": asked.body} if asked.body is not None and asked.files is None else {}
        body = {"content": asked.body} if isinstance(asked.body, bytes) else body
        body = {"data": asked.body, "files": asked.files} if asked.files is not None else body
        url, headers = asked.path, {**sent, **asked.headers}
        with self.client.stream(asked.method, url, params=asked.params, headers=headers, **body) as answer:
            text = b""
            # Some streams say no more than that they began.
            with contextlib.suppress(httpx.ReadTimeout):
                for chunk in answer.iter_bytes():
                    text += chunk
                    if len(text) > MOST_BYTES or asked.path.endswith(STREAMS):
                        break
            return answer.status_code, f"{dict(answer.headers)}\n{text.decode('utf-8', 'replace')}"


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    """Three tenants that were filled alike, each with a secret of its own."""
    folder = tmp_path_factory.mktemp("tenants")
    data = folder / "data"
    first = make_key(data, "root", "--scope", "admin")
    roots, hooks = str(folder / "adapters"), "http://127.0.0.1:9"
    Path(roots).mkdir()
    with HeddleProcess(data, auth="on", adapter_roots=roots, alert_webhooks=hooks, **QUIET) as process:
        client = httpx.Client(base_url=process.url, timeout=60 * strain())
        operator = {"authorization": f"Bearer {first}"}
        with client, httpx.Client(base_url=process.url, timeout=60 * strain(), headers=operator) as root:
            tenants = [Tenant(name, f"canary-{name.partition('/')[0]}") for name in (OWN, FOREIGN, SPARE)]
            for tenant in tenants:
                Seeding(root, tenant).fill(folder / "adapters")
            revoked = made(root, "gone", "admin")
            root.delete(f"/_ui/api/keys/{revoked['id']}")
            keys = {"root": first, "revoked": revoked["key"], "wrong": "heddle-" + "0" * 64}
            keys |= {"expired": made(root, "late", "admin", expires="1s")["key"]}
            keys |= {role: made(root, role, role)["key"] for role in ("viewer", "write")}
            for kind, place in BOUND.items():
                keys |= {f"{kind} {role}": made(root, kind, role + place)["key"] for role in ROLES}
            keys |= {TWO + role: made(root, "two", f"{role}:{OWN}", f"viewer:{SPARE}")["key"] for role in ROLES}
            ended = {"authorization": f"Bearer {keys['expired']}"}
            until(lambda: client.get("/v1/limits/own", headers=ended).status_code == 401, "the key has ended")
            yield Matrix(client, keys, folder, *tenants)


def made(root: httpx.Client, user: str, *roles: str, **more: str) -> dict[str, str]:
    """A new key."""
    answer = root.post("/_ui/api/keys", json={"user": user, "roles": roles, **more})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def _is_destructive(asked: Asked) -> bool:
    words = ("delete", "purge", "unload", "cancel")
    return asked.method == "DELETE" or any(word in asked.template for word in words)


IN_ORDER = sorted(ROUTES, key=lambda asked: (_is_destructive(asked), asked.method == "DELETE", -len(asked.template)))
"""What takes away comes last, the whole behind its parts."""


def _may(role: str, needed: str) -> bool:
    """What the tables of docs/operating.md say."""
    return needed in (NO_KEY, ANY_KEY) or needed in read_scopes([role])


_LIFE = re.compile(r'"status": ?(null|\{"type": ?"active"\})')
"""Whether a training session was heard of lately: it changes by itself."""


def snapshot(matrix: Matrix, tenant: Tenant) -> dict[str, str]:
    """What an operator reads of a project."""
    found = {}
    for asked in ROUTES:
        if asked.scope == "read" and not asked.template.endswith(STREAMS):
            found[str(asked)] = _LIFE.sub("", matrix.ask("root", request_for(asked, tenant))[1].partition("\n")[2])
    return found


@contextlib.contextmanager
def unchanged(matrix: Matrix, tenant: Tenant) -> Iterator[None]:
    """Fail where what a project holds reads otherwise afterwards."""
    before, again = snapshot(matrix, tenant), snapshot(matrix, tenant)
    steady = {name for name in before if before[name] == again[name] and tenant.secret in before[name]}
    assert len(steady) >= 30, sorted(steady)
    yield
    after = snapshot(matrix, tenant)
    changed = [_difference(name, before[name], after[name]) for name in steady if before[name] != after[name]]
    assert not changed, "\n".join(changed)


def test_nobody_else_sees_or_changes_what_is_a_tenants(matrix: Matrix) -> None:
    """A key that is bound to projects or an entity, with the names of another project's things."""
    problems = []
    with unchanged(matrix, matrix.foreign):
        for who in spread(["project admin", *(TWO + role for role in ROLES), "entity admin"]):
            for asked in ROUTES:
                problems += _problems(matrix, who, asked, matrix.foreign, named=True)
                problems += _problems(matrix, who, asked, matrix.foreign.within(OWN), named=False)
    assert not problems, "\n".join(problems)


def test_each_role_may_what_the_table_says_in_its_own_project_only(matrix: Matrix) -> None:
    """Keys that are bound to two projects: in one with a role, in the other as viewers."""
    problems = []
    with unchanged(matrix, matrix.spare):
        for role in ROLES:
            for asked in ROUTES:
                if asked.template.endswith("/live"):
                    continue
                problems += _refusals(matrix, role, asked)
    assert not problems, "\n".join(problems)


def _refusals(matrix: Matrix, role: str, asked: Asked) -> Iterator[str]:
    """What is wrong with the answers to one request: where the role counts, and where its key only reads."""
    who = TWO + role
    if not _may(role, asked.scope):
        status, text = matrix.ask(who, request_for(asked, matrix.own))
        is_hidden = _may("viewer", asked.scope) and status in (404, 200) and matrix.own.secret not in text
        if status != 403 and not is_hidden:
            yield f"{who} {asked} in its own project: {status} without '{asked.scope}': {text[-300:]}"
    elif not _is_destructive(asked) and str(asked) not in SERVER_WIDE:
        status, text = matrix.ask(who, request_for(asked, matrix.own))
        is_reading = role == "write" and any(
            words in text for words in ("scope 'read'", "does not have permission to read")
        )
        if status >= 500 or (status in (401, 403) and str(asked) not in SPECIAL and not is_reading):
            yield f"{who} {asked} in its own project: {status}: {text[-300:]}"
    request = request_for(asked, matrix.spare)
    if _may("viewer", asked.scope) or not _names(request, matrix.spare):
        return
    status, text = matrix.ask(who, request)
    if status not in (403, 404) and not (status < 300 and str(asked) in TELLS_NOTHING):
        yield f"{who} {asked} where it is a viewer: {status}: {text[-300:]}"


def test_what_is_anothers_is_refused_as_what_is_nowhere(matrix: Matrix) -> None:
    """Or else a refusal would say what others have."""
    problems = []
    nothing = matrix.foreign.nowhere()
    for asked in IN_ORDER:
        for place in (OWN, FOREIGN):
            if asked.template.endswith("/live") or (place == OWN and asked.scope != "read"):
                continue  # what is written there may have any name
            told = [_told_of(matrix, asked, names.within(place)) for names in (matrix.foreign, nothing)]
            if told[0] != told[1] and max(status for status, _ in told) >= 400:
                problems.append(f"{asked} ({place}): {told}")
    assert not problems, "\n".join(problems)


def _told_of(matrix: Matrix, asked: Asked, names: Tenant) -> tuple[int, str]:
    """Status and body of an answer, in which ids are called by their names."""
    status, text = matrix.ask("project admin", request_for(asked, names))
    text = text.partition("\n")[2]
    for name, value in sorted(names.ids.items(), key=lambda pair: -len(pair[1])):
        text = text.replace(value, f"<{name}>")
    assert "weave-trace-internal" not in text or status < 400, text
    return status, re.sub(r'"(request_id|id)": ?"[^"]+"', "", text)


def _names(request: Asking, tenant: Tenant) -> bool:
    """True for a request about something that only this project has."""
    told, names = _text_of(request), (tenant.model, tenant.job, tenant.response, tenant.conversation)
    return any(name in told for name in (tenant.project_id, *names))


def _difference(name: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(*(re.split(r"(?<=[,}])", text) for text in (before, after)), lineterm="", n=1)
    return f"{name}: " + " ".join(line for line in lines if line[:1] in "+-")[:2000]


def _problems(matrix: Matrix, who: str, asked: Asked, names: Tenant, named: bool) -> Iterator[str]:
    """What is wrong with the answer to a request with foreign names; `named` says that it names the project."""
    request = request_for(asked, names)
    if asked.template.endswith("/live") and "{" not in asked.template:
        return  # tells of the whole server, without contents
    status, text = matrix.ask(who, request)
    if status >= 500 or matrix.foreign.secret in text:
        yield f"{who} {asked} ({names.project_id}): {status} {text[-300:]}"
    elif not _may(who.split()[1], asked.scope) and not _may("viewer", asked.scope) and status != 403:
        yield f"{who} {asked} ({names.project_id}): {status} without the scope"
    elif named and FOREIGN in _text_of(request) and status < 400 and str(asked) not in TELLS_NOTHING:
        yield f"{who} {asked}: {status} for a project beyond its reach: {text[-300:]}"
    elif named and status in (400, 405, 409, 422) and str(asked) not in SPECIAL:
        yield f"{who} {asked}: {status}, where 403 or 404 is due: {text[-300:]}"


TELLS_NOTHING = {
    "POST /graphql",  # null for what is not there
    "POST /service/projects_info",  # leaves out what is not reached
    *SENT_BACK,  # the page asks for the project as whoever looks at it
    "GET /{entity}/{project}/r/call/{call}",
    "GET /project/{entity}/{project}/traces/{trace_id}",  # leads to a page
    "GET /v1/preview/models",  # an empty list
    "GET /inference/nvidia/v2/hardware",
}
"""Routes that answer with a success and nothing where a project is beyond the caller's reach."""


def _text_of(request: Asking) -> str:
    return f"{request.path} {request.params} {request.headers} {request.body}"


@pytest.mark.parametrize("who", with_breadth(["none", "wrong", "revoked", "expired"]))
def test_nobody_without_a_key_is_answered(matrix: Matrix, who: str) -> None:
    for asked in ROUTES:
        status, text = matrix.ask(who, request_for(asked, matrix.own))
        assert matrix.own.secret not in text, f"{asked}: {text[:300]}"
        if asked.scope != NO_KEY:
            assert status == 401, f"{asked}: {status} {text[:300]}"


@pytest.mark.thorough
def test_a_key_does_what_its_role_says(matrix: Matrix) -> None:
    for role in ("viewer", "write"):
        for asked in ROUTES:
            if not _may(role, asked.scope):
                status, text = matrix.ask(role, request_for(asked, matrix.own))
                assert status == 403 and f"scope '{asked.scope}'" in text, f"{role} {asked}: {status} {text[:300]}"


@pytest.mark.thorough
def test_a_key_that_only_writes_is_told_nothing(matrix: Matrix) -> None:
    for who in ("project write", "write"):
        for asked in IN_ORDER:
            if asked.template.endswith("/live"):
                continue
            status, text = matrix.ask(who, request_for(asked, matrix.own))
            assert status < 500 and matrix.own.secret not in text, f"{who} {asked}: {status} {text[-500:]}"


@pytest.mark.thorough
def test_bound_admins_do_not_administer_the_server(matrix: Matrix) -> None:
    for who in ("project admin", "entity admin"):
        for asked in ROUTES:
            if str(asked) in SERVER_WIDE:
                status, text = matrix.ask(who, request_for(asked, matrix.own))
                assert status == 403 and SERVER_WIDE[str(asked)] in text, f"{who} {asked}: {status} {text[:300]}"


def load(matrix: Matrix, who: str, name: str, folder: Path | str) -> httpx.Response:
    headers = {"authorization": f"Bearer {matrix.keys[who]}"}
    body = json.dumps({"lora_name": name, "lora_path": str(folder)})
    return matrix.client.post("/v1/load_lora_adapter", content=body, headers=headers)


@pytest.mark.thorough
def test_adapters_of_the_server_are_the_operators(matrix: Matrix) -> None:
    adapter = matrix.folder / "adapters" / "teama"
    assert load(matrix, "root", "prod", adapter).status_code == 200
    for who in ("project admin", "entity admin"):
        for path in ("load", "unload"):
            body = {"lora_name": "prod", "lora_path": str(adapter), "load_inplace": True}
            refused = matrix.post(who, f"/v1/{path}_lora_adapter", body)
            assert refused.status_code == 403 and "whole server" in refused.text
        own = f"wandb-artifact:///{OWN}/{who.partition(' ')[0]}"
        assert load(matrix, who, own, adapter).status_code == 200
    chat = {"model": "prod@0", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    assert matrix.post("project write", "/v1/chat/completions", chat).status_code == 200


@pytest.mark.thorough
def test_adapters_come_from_the_roots_and_never_from_others(matrix: Matrix) -> None:
    data, name = matrix.folder / "data", f"wandb-artifact:///{OWN}/stolen"
    (matrix.folder / "adapters" / "link").symlink_to(matrix.folder / "outside")
    make_adapter(matrix.folder / "outside", TINY_FOLDER)
    checkpoint = next((data / "training").glob(f"{matrix.foreign.model}/checkpoints/*"))
    # Their names are in the order in which they were made: own, foreign, spare.
    by_hand = sorted(path for path in (data / "adapters").iterdir() if not path.name.startswith("."))[1]
    places = [matrix.folder / "outside", matrix.folder / "adapters" / "link", checkpoint, by_hand, data, "/etc", "/no"]
    places += [f"{matrix.folder}/adapters/../outside", f"{data}/training/../../outside", "", ".", "a\0b", "x" * 5000]
    places += ["/".join(["y" * 200] * 60), "\ud800", f"{matrix.folder}/adapters/{'z' * 300}"]
    for who in ("project admin", "entity admin", "root"):
        told = {load(matrix, who, name, place).text for place in places[:-1]}
        assert len(told) == 1 and "adapter_roots" in told.pop()
    inside = load(matrix, "root", name, places[-1])
    assert inside.status_code == 404 and "not found" in inside.text


@pytest.mark.thorough
def test_a_prompt_and_a_queue_are_for_keys_that_read(matrix: Matrix) -> None:
    t, named = matrix.spare, {"project_id": SPARE}
    chat = {"messages": [], "max_tokens": 1, "model": TINY, "return_token_ids": True}
    for prompt in ("prompt:latest", "prompt", t.object("prompt")):
        for path in ("/completions/create", "/completions/create_stream"):
            asked = {**named, "inputs": {**chat, "prompt": prompt}}
            refused = matrix.post("write", path, asked)
            assert refused.status_code == 403 and t.secret not in refused.text, refused.text
            assert matrix.post("root", path, asked).status_code == 200
    counted = {**named, "call_ids": [], "filter": {"op_names": ["ask"]}, "display_fields": []}
    refused = matrix.post("write", f"/annotation_queues/{t.queue}/items", counted)
    assert refused.status_code == 403 and "scope 'read'" in refused.text
    moved = {**named, "annotation_state": "in_progress"}
    item = f"/annotation_queues/{t.queue}/items/{t.item}/progress"
    assert matrix.post("write", item, moved).status_code == 403


@pytest.mark.thorough
def test_tenants_share_no_prefix_cache(matrix: Matrix) -> None:
    text = "one two three four five six seven eight nine ten " * 12
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "model": TINY}

    def cached(who: str, **more: str) -> int:
        usage = matrix.post(who, "/v1/chat/completions", {**body, **more}).json()["usage"]
        return int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)

    assert cached("project write") == 0
    assert cached("project admin") >= 16
    assert cached("entity write") == cached("write") == 0
    assert cached("write") >= 16 and cached("entity admin") >= 16
    assert cached("project write", cache_salt="mine") == cached("write", cache_salt="mine") == 0
    assert cached("project write", cache_salt="mine") >= 16


@pytest.mark.thorough
def test_what_nests_in_an_address_is_refused(matrix: Matrix) -> None:
    headers = {"authorization": f"Bearer {matrix.keys['root']}"}
    nested = ["[" * depth + "]" * depth for depth in (201, 500, 1000, 1020, 5000)]
    nested += ['{"project_id": ' * depth + "1" + "}" * depth for depth in (201, 1000, 1020, 1500)]
    for chosen in (*nested, "{", "1" * 5000, "null", "\x00", '{"project_id": 1e999}'):
        answer = matrix.client.get("/_ui/api/calls/export", params={"chosen": chosen}, headers=headers)
        assert 400 <= answer.status_code < 500, f"{chosen[:20]}: {answer.status_code}"


TAKEN_BEFORE = {
    "POST /feedback/purge",
    "DELETE /v2/{entity}/{project}/predictions",
    "DELETE /v2/{entity}/{project}/scores",
    "DELETE /api/public/traces",
}
"""Routes for which requests before theirs (/feedback/replace, /calls/delete) leave nothing to delete."""


def newest(matrix: Matrix) -> dict[str, Any]:
    """The newest row of the audit log that a request made."""
    rows = matrix.client.get("/audit_log", headers={"authorization": f"Bearer {matrix.keys['root']}"}).json()["rows"]
    return next(dict(row) for row in rows if row["action"] != "purge" and row["user"] == "root")


def test_every_route_can_be_asked_and_what_admins_do_is_in_the_audit_log(matrix: Matrix) -> None:
    """Else the other tests would be about requests that are refused anyhow: teach `tenant_requests` a new route."""
    missed = []
    for asked in IN_ORDER:
        if asked.template.endswith("/live"):
            continue
        is_audited = asked.scope in ("delete", "admin") and asked.method != "GET"
        if str(asked) in TAKEN_BEFORE:
            with httpx.Client(base_url=matrix.client.base_url, timeout=60, headers=matrix.headers("root")) as root:
                Seeding(root, matrix.spare).fill_again()
        before = newest(matrix)["number"] if is_audited else 0
        status, text = matrix.ask("root", request_for(asked, matrix.spare))
        if is_audited and status < 300 and newest(matrix)["number"] == before:
            missed.append(f"{asked}: no row of the audit log; note what it does")
        if status != SPECIAL.get(str(asked), status) or (status >= 400 and str(asked) not in SPECIAL):
            missed.append(f"{asked}: {status} {text[-300:]}")
    assert not missed, "\n".join(missed)
