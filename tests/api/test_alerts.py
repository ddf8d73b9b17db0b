"""Alerts: figures cross thresholds, and signed messages say so, once per change, also through refusals and kills."""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from heddle.errors import InvalidRequest
from heddle.trace.alerts import targets
from tests.support.chat import until
from tests.support.cli import make_key
from tests.support.server import HeddleProcess
from tests.support.webhooks import Receiver, receiving

Json = dict[str, Any]
PROJECT = "team/alerts"


@pytest.fixture(scope="module")
def hooks() -> Iterator[tuple[Receiver, str]]:
    """A receiver for all tests."""
    with receiving() as opened:
        yield opened


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, hooks: tuple[Receiver, str]) -> Iterator[httpx.Client]:
    """A server that may send there."""
    folder = tmp_path_factory.mktemp("alerts")
    settings = {"model": "none", "alert_interval": 0.2, "alert_webhooks": hooks[1]}
    with HeddleProcess(folder / "data", **settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def create(client: httpx.Client, hooks: tuple[Receiver, str], project: str, **rule: Any) -> Json:
    """A new rule, known to the receiver."""
    body = {"project_id": project, "name": "a rule", "webhook_url": f"{hooks[1]}/x", **rule}
    answer = client.post("/alerts/create", json=body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    hooks[0].secrets[made["alert"]["id"]] = made["secret"]
    return dict(made["alert"])


def write(client: httpx.Client, project: str, *, op: str = "op", error: bool = False, ms: int = 10, **more: Any) -> str:
    """A call that has just ended."""
    started = datetime.now(UTC) - timedelta(seconds=5)
    call = {
        "project_id": project,
        "id": str(uuid.uuid4()),
        "trace_id": str(uuid.uuid4()),
        "op_name": op,
        "started_at": started.isoformat(),
        "ended_at": (started + timedelta(milliseconds=ms)).isoformat(),
        "attributes": {},
        "inputs": {},
        "summary": {},
        "exception": "ValueError: no" if error else None,
        **more,
    }
    assert client.post(f"/v2/{project}/calls/complete", json={"batch": [call]}).status_code == 200
    return str(call["id"])


def about(receiver: Receiver, alert: Json) -> list[Json]:
    """The messages about one rule."""
    return [message for message in receiver.messages if message["data"]["alert_id"] == alert["id"]]


def wait(receiver: Receiver, alert: Json, count: int) -> list[Json]:
    """The messages about one rule, once there are so many."""
    until(lambda: len(about(receiver, alert)) >= count, f"{count} messages about {alert['rule']['metric']}")
    return about(receiver, alert)


def read(client: httpx.Client, project: str, alert: Json) -> Json:
    """The rule as it is now."""
    found = client.post("/alerts/query", json={"project_id": project}).json()["alerts"]
    return next(item for item in found if item["id"] == alert["id"])


def test_count_fires_once_and_resolves(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    receiver, _ = hooks
    alert = create(client, hooks, PROJECT, metric="count", operator=">=", threshold=3, filter={"op_names": ["wanted"]})
    for op in ("wanted", "other", "wanted"):
        write(client, PROJECT, op=op)
    until(lambda: read(client, PROJECT, alert)["value"] == 2, "two calls counted")
    assert about(receiver, alert) == []
    last = write(client, PROJECT, op="wanted")
    [message] = wait(receiver, alert, 1)
    assert message["type"] == "alert.firing"
    assert message["signed"]
    assert message["data"]["value"] == 3
    assert message["data"]["project_id"] == PROJECT
    assert "webhook_url" not in message["data"]["rule"]
    client.post("/calls/delete", json={"project_id": PROJECT, "call_ids": [last]})
    assert [item["type"] for item in wait(receiver, alert, 2)] == ["alert.firing", "alert.resolved"]
    assert read(client, PROJECT, alert)["state"] == "quiet"


def test_a_rule_on_a_deleted_scorer_has_a_problem(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    """One on a scorer that was never stored has none: its scores may come from a client."""
    project = "team/scorers"
    scorer = {"project_id": project, "object_id": "tone", "val": {"_type": "Scorer", "name": "tone"}}
    assert client.post("/obj/create", json={"obj": scorer}).status_code == 200
    of = {"metric": "score", "operator": "<", "threshold": 0.5}
    stored, other = (create(client, hooks, project, **of, scorer=name) for name in ("tone", "elsewhere"))
    until(lambda: read(client, project, stored)["checked_at"] is not None, "a look at the rule")
    assert read(client, project, stored)["problem"] is None
    assert client.post("/obj/delete", json={"project_id": project, "object_id": "tone"}).status_code == 200
    until(lambda: read(client, project, stored)["problem"] == "the scorer tone was deleted", "the problem")
    assert read(client, project, other)["problem"] is None
    assert client.post("/obj/create", json={"obj": scorer | {"val": {"_type": "Scorer"}}}).status_code == 200
    until(lambda: read(client, project, stored)["problem"] is None, "the scorer is there again")


def test_every_metric(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    project = "team/metrics"
    usage = {"gpt-4o": {"prompt_tokens": 1_000_000, "completion_tokens": 0, "requests": 1}}
    rules: list[tuple[Json, float]] = [
        ({"metric": "error_share", "operator": ">", "threshold": 0.4}, 0.5),
        ({"metric": "cost", "operator": ">", "threshold": 2}, 2.5),
        ({"metric": "p95_latency_ms", "operator": ">=", "threshold": 1000}, 3000.0),
        ({"metric": "score", "operator": "<", "threshold": 0.5, "scorer": "tone", "score_path": "kind"}, 0.25),
    ]
    for error, ms in ((False, 3000), (True, 3000)):
        call = write(client, project, error=error, ms=ms, summary={} if error else {"usage": usage})
        item = {
            "weave_ref": f"weave:///{project}/call/{call}",
            "feedback_type": "wandb.runnable.tone",
            "runnable_ref": f"weave:///{project}/object/tone:v0",
            "payload": {"output": {"kind": 0.0 if error else 0.5}},
            "project_id": project,
        }
        assert client.post("/feedback/create", json=item).status_code == 200
    write(client, "team/elsewhere", error=True, ms=9999)
    for rule, value in rules:
        alert = create(client, hooks, project, **rule)
        [message] = wait(hooks[0], alert, 1)
        assert message["type"] == "alert.firing"
        assert message["data"]["value"] == pytest.approx(value), rule
    with_filter = {"metric": "score", "operator": "<", "threshold": 0.5, "scorer": "tone", "score_path": "kind"}
    query = {"$expr": {"$eq": [{"$getField": "summary.weave.status"}, {"$literal": "success"}]}}
    alert = create(client, hooks, project, **with_filter, query=query)
    until(lambda: read(client, project, alert)["checked_at"] is not None, "a look at the rule")
    assert read(client, project, alert)["value"] == 0.5
    assert read(client, project, alert)["state"] == "quiet"


def test_usage_that_calls_above_repeat_costs_once(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    """As weave sums the usage of a call up into its parents; each of them may still be watched alone."""
    project = "team/summed"
    used = {"summary": {"usage": {"gpt-4o": {"prompt_tokens": 1_000_000, "completion_tokens": 0, "requests": 1}}}}
    parent = None
    for op in ("agent", "step", "ask"):
        parent = write(client, project, op=op, parent_id=parent, trace_id="t", **used)
    for chosen in ({}, {"op_names": ["agent"]}, {"op_names": ["ask"]}, {"trace_roots_only": True}):
        alert = create(client, hooks, project, metric="cost", operator=">", threshold=2, filter=chosen)
        [message] = wait(hooks[0], alert, 1)
        assert message["data"]["value"] == pytest.approx(2.5), chosen


def test_too_few_calls_decide_nothing(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    project = "team/few"
    rule = {"metric": "error_share", "operator": ">", "threshold": 0.1, "minimum_calls": 2}
    alert = create(client, hooks, project, **rule)
    write(client, project, error=True)
    until(lambda: read(client, project, alert)["value"] == 1.0, "the share")
    assert read(client, project, alert)["state"] == "quiet"
    write(client, project, error=True)
    assert wait(hooks[0], alert, 1)[0]["data"]["calls"] == 2


def test_update_test_and_delete(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    project = "team/changes"
    alert = create(client, hooks, project, metric="count", operator=">", threshold=100)
    answer = client.post("/alerts/test", json={"project_id": project, "id": alert["id"]})
    assert answer.status_code == 200
    assert wait(hooks[0], alert, 1)[0]["type"] == "alert.test"
    body = {"project_id": project, "id": alert["id"], "name": "new", **alert["rule"], "threshold": -1}
    changed = client.post("/alerts/update", json=body)
    assert changed.status_code == 200
    assert changed.json()["alert"]["name"] == "new"
    late = client.post("/alerts/update", json={**body, "name": "late", "after": alert["digest"]})
    assert (late.status_code, read(client, project, alert)["name"]) == (409, "new")
    assert "has been changed or deleted since" in late.json()["reason"]
    kept = client.post("/alerts/update", json={**body, "after": changed.json()["alert"]["digest"]})
    assert kept.json()["alert"]["digest"] == changed.json()["alert"]["digest"] != alert["digest"]
    assert wait(hooks[0], alert, 2)[1]["type"] == "alert.firing"
    assert client.post("/alerts/update", json={**body, "enabled": False}).status_code == 200
    until(lambda: read(client, project, alert)["enabled"] is False, "the rule is off")
    deliveries = client.post("/alerts/deliveries/query", json={"project_id": project, "id": alert["id"]}).json()
    assert [item["event"] for item in deliveries["deliveries"]] == ["alert.firing", "alert.test"]
    until(
        lambda: all(
            item["state"] == "delivered"
            for item in client.post("/alerts/deliveries/query", json={"project_id": project}).json()["deliveries"]
        ),
        "delivered",
    )
    assert client.post("/alerts/delete", json={"project_id": project, "id": alert["id"]}).json() == {}
    assert client.post("/alerts/delete", json={"project_id": project, "id": alert["id"]}).status_code == 404
    assert client.post("/alerts/query", json={"project_id": project}).json() == {"alerts": []}


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"metric": "mood"}, 422, "metric"),
        ({"operator": "=="}, 422, "operator"),
        ({"threshold": "much"}, 422, "threshold"),
        ({"window_seconds": 1}, 422, "window_seconds"),
        ({"scorer": "s"}, 422, "scorer"),
        ({"minimum_calls": 5}, 422, "minimum_calls"),
        ({"metric": "score"}, 422, "scorer"),
        ({"query": {"$expr": {"$wrong": []}}}, 422, "query"),
        ({"query": {"$expr": {"$eq": [{"$getField": "nowhere"}, {"$literal": 1}]}}}, 422, "nowhere"),
        ({"webhook_url": "http://169.254.169.254/latest"}, 400, "alert_webhooks"),
        ({"webhook_url": "{hooks}.evil.example/"}, 400, "alert_webhooks"),
        ({"webhook_url": "{hooks}/../x"}, 400, "alert_webhooks"),
        ({"project_id": "nothing"}, 400, "project"),
    ],
)
def test_bad_rules_are_refused(
    client: httpx.Client, hooks: tuple[Receiver, str], change: Json, status: int, words: str
) -> None:
    good = {"project_id": "team/bad", "name": "n", "metric": "count", "operator": ">", "threshold": 1}
    body = {**good, "webhook_url": hooks[1], **change}
    body["webhook_url"] = body["webhook_url"].replace("{hooks}", hooks[1])
    answer = client.post("/alerts/create", json=body)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert client.post("/alerts/query", json={"project_id": "team/bad"}).json() == {"alerts": []}


@pytest.mark.thorough
def test_a_message_survives_refusals_and_a_kill(tmp_path: Path) -> None:
    with receiving() as hooks:
        receiver, url = hooks
        settings = {"model": "none", "alert_interval": 0.2, "alert_webhooks": url}
        receiver.refuse = 1
        with HeddleProcess(tmp_path / "data", **settings) as server, httpx.Client(base_url=server.url) as client:
            alert = create(client, hooks, PROJECT, metric="count", operator=">", threshold=0)
            write(client, PROJECT)
            until(lambda: len(receiver.attempts) == 1, "one refused attempt")
            body = {"project_id": PROJECT}
            until(
                lambda: client.post("/alerts/deliveries/query", json=body).json()["deliveries"][0]["attempts"] == 1,
                "the attempt noted",
            )
            [waiting] = client.post("/alerts/deliveries/query", json=body).json()["deliveries"]
            assert waiting["state"] == "pending"
            assert waiting["error"] == "returned 503"
            server.kill()
        with HeddleProcess(tmp_path / "data", **settings) as server, httpx.Client(base_url=server.url) as client:
            [message] = wait(receiver, alert, 1)
            assert message["id"] == receiver.attempts[0] == waiting["id"]
            assert message["signed"]
            until(lambda: read(client, PROJECT, alert)["checked_at"] is not None, "a look after the restart")
            assert len(about(receiver, alert)) == 1


def test_no_webhooks_without_the_setting(tmp_path: Path) -> None:
    with HeddleProcess(tmp_path / "data", model="none") as server:
        rule = {"project_id": PROJECT, "name": "n", "metric": "count", "operator": ">", "threshold": 1}
        answer = httpx.post(server.url + "/alerts/create", json={**rule, "webhook_url": "https://example.com/"})
        assert answer.status_code == 400
        assert "alert_webhooks" in answer.json()["reason"]


def test_a_key_reaches_its_own_project_only(tmp_path: Path) -> None:
    data = tmp_path / "data"
    key = make_key(data, "ann", "--project", "team/own", "--scope", "read", "--scope", "write")
    hook = "https://example.com"
    with (
        HeddleProcess(data, model="none", auth="on", alert_webhooks=hook) as server,
        httpx.Client(base_url=server.url, auth=("api", key)) as client,
    ):
        rule = {"name": "n", "metric": "count", "operator": ">", "threshold": 1, "webhook_url": hook}
        assert client.post("/alerts/create", json={**rule, "project_id": "team/own"}).status_code == 200
        assert client.post("/alerts/create", json={**rule, "project_id": "team/other"}).status_code == 403
        assert client.post("/alerts/query", json={"project_id": "team/other"}).status_code == 403


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com.evil.net/team/x",
        "https://hooks.example.com@evil.net/team/x",
        "https://hooks.example.com:8443/team/x",
        "http://hooks.example.com/team/x",
        "https://hooks.example.com/team",
        "https://hooks.example.com/team/../other",
        "https://hooks.example.com/team/%2e%2E/other",
        "https://hooks.example.com/team/%2E./other",
        "https://hooks.example.com/team/..%2fother",
        "https://hooks.example.com/team/x%5c..%5cother",
        "https://hooks.example.com/team/ x",
        "https://hooks.example.com/team/\x00",
    ],
)
def test_only_addresses_below_the_prefix_are_allowed(url: str) -> None:
    allowed = "https://hooks.example.com/team/"
    targets.check_webhook_address("https://hooks.example.com/team/x?to=1", allowed)
    with pytest.raises(InvalidRequest, match="is not allowed"):
        targets.check_webhook_address(url, allowed)


def test_nobody_deletes_the_messages_of_others(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    receiver, _ = hooks
    receiver.refuse = 10_000
    alert = create(client, hooks, "team/mine", metric="count", operator=">=", threshold=0)

    def pending() -> list[Json]:
        body = {"project_id": "team/mine", "id": alert["id"]}
        found = client.post("/alerts/deliveries/query", json=body).json()["deliveries"]
        return [item for item in found if item["state"] == "pending"]

    until(lambda: len(pending()) == 1, "a message that is refused")
    answer = client.post("/alerts/delete", json={"project_id": "team/other", "id": alert["id"]})
    assert answer.status_code == 404
    assert len(pending()) == 1
    receiver.refuse = 0
    assert client.post("/alerts/delete", json={"project_id": "team/mine", "id": alert["id"]}).status_code == 200
    assert pending() == []


def test_a_rule_may_hold_numbers_beyond_64_bits(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    query = {"$expr": {"$lt": [{"$getField": "inputs.n"}, {"$literal": 10**30}]}}
    alert = create(client, hooks, "team/long", metric="count", operator=">", threshold=5, query=query)
    write(client, "team/long", inputs={"n": 1})
    until(lambda: read(client, "team/long", alert)["value"] == 1, "the call counted")
    assert client.post("/replays/create", json={"project_id": "team/long", "query": query}).status_code == 200


def test_a_receiver_that_drips_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes less than its own limit, and all of them more than the whole."""
    monkeypatch.setattr(targets, "_MOST_SEND_SECONDS", 0.5)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"H")
                await writer.drain()
                await asyncio.sleep(0.02)

    async def told() -> str | None:
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            async with asyncio.timeout(30):
                return await targets.send_webhook(
                    f"http://127.0.0.1:{port}/x", targets.create_secret(), "msg_1", 1, "{}"
                )
        finally:
            server.close()

    assert asyncio.run(told()) == "gave no answer within 0.5 s"


def test_addresses_of_webhooks_are_not_logged(tmp_path: Path) -> None:
    """Whoever knows the address of a webhook may often write there."""
    with receiving() as opened:
        settings = {"model": "none", "alert_interval": 0.2, "alert_webhooks": opened[1]}
        with HeddleProcess(tmp_path / "data", **settings) as server, httpx.Client(base_url=server.url) as client:
            alert = create(client, opened, PROJECT, metric="count", operator=">=", threshold=0)
            wait(opened[0], alert, 1)
            assert f"{opened[1]}/x" not in server.log()


def test_rules_and_test_messages_are_bounded(client: httpx.Client, hooks: tuple[Receiver, str]) -> None:
    project = "team/many"
    rule = {"project_id": project, "name": "n", "metric": "count", "operator": ">", "threshold": 1e9}
    bodies = [{**rule, "enabled": False, "webhook_url": f"{hooks[1]}/unknown"} for _ in range(101)]
    answers = [client.post("/alerts/create", json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [200] * 100 + [400]
    # The receiver knows no secret of these and breaks off, so that messages stay waiting.
    alert = {"project_id": project, "id": answers[0].json()["alert"]["id"]}
    statuses = [client.post("/alerts/test", json=alert).status_code for _ in range(21)]
    assert statuses == [200] * 20 + [429]
