"""Alerts to Slack, by mail and to several webhooks: each is told, each tried by itself, each secret kept."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.chat import until
from tests.support.mail import MailServer, taking_mail
from tests.support.server import HeddleProcess
from tests.support.webhooks import PlainReceiver, receiving_plain

Json = dict[str, Any]
RULE = {"metric": "count", "operator": ">", "threshold": -1, "window_seconds": 60}
TOKEN = "T000/B000/verysecrettoken42"


class Place:
    """A server with where its alerts go."""

    def __init__(self, client: httpx.Client, slack: PlainReceiver, url: str, mail: MailServer, data: Path) -> None:
        self.client, self.slack, self.url, self.mail, self.data = client, slack, url, mail, data

    def create(self, project: str, targets: list[Json], **more: Json) -> httpx.Response:
        """Make a rule that fires at once."""
        body = {"project_id": project, "name": "Too <many> & more", **RULE, "targets": targets, **more}
        return self.client.post("/alerts/create", json=body)

    def deliveries(self, project: str) -> list[Json]:
        """Messages, newest first."""
        found = self.client.post("/alerts/deliveries/query", json={"project_id": project})
        return list(found.json()["deliveries"])

    def mailed(self, project: str) -> list[list[str]]:
        """The receivers of each mail about a project."""
        taken = zip(self.mail.mails, self.mail.receivers, strict=True)
        return [receivers for mail, receivers in taken if mail["Subject"].endswith(f" in {project}")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """One for all tests."""
    data = tmp_path_factory.mktemp("targets") / "data"
    with receiving_plain() as (slack, url), taking_mail() as mail:
        settings = {
            "model": "none",
            "alert_interval": 0.2,
            "alert_webhooks": url,
            "smtp": mail.address,
            "smtp_from": "heddle@example.com",
            "alert_emails": "ann@example.com,@ops.example.com",
            "public_url": "https://heddle.example.com",
        }
        with HeddleProcess(data, **settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            yield Place(client, slack, url, mail, data)


def test_every_target_is_told_and_tried_by_itself(place: Place) -> None:
    project = "team/all"
    place.mail.refuse = 1
    slack = f"{place.url}/services/{TOKEN}"
    targets = [
        {"kind": "slack", "url": slack},
        {"kind": "email", "to": ["ann@example.com", "on-call@OPS.example.com"]},
        {"kind": "webhook", "url": f"{place.url}/own"},
    ]
    made = place.create(project, targets)
    assert made.status_code == 200, made.text
    until(lambda: len({path for path, _, _ in place.slack.bodies}) == 2, "Slack and the webhook told")
    by_path = {path.rpartition("/")[2]: (body, headers) for path, body, headers in place.slack.bodies}
    text, headers = by_path["verysecrettoken42"]
    assert list(text) == ["text"] and "webhook-signature" not in headers
    assert text["text"].startswith("Too &lt;many&gt; &amp; more is firing in team/all\ncount is 0; the line is &gt; -1")
    assert text["text"].endswith("https://heddle.example.com/team/all/weave/alerts")
    assert by_path["own"][0]["type"] == "alert.firing" and "webhook-signature" in by_path["own"][1]
    until(lambda: place.mail.mails != [], "the mail, once the server takes it")
    [mail] = place.mail.mails
    assert mail["Subject"] == "Too <many> & more is firing in team/all" and mail["From"] == "heddle@example.com"
    assert place.mail.receivers == [["ann@example.com", "on-call@OPS.example.com"]]
    until(lambda: {item["state"] for item in place.deliveries(project)} == {"delivered"}, "all delivered")
    attempts = {item["target"]: item["attempts"] for item in place.deliveries(project)}
    assert sorted(attempts.values()) == [1, 1, 2]
    told = [made.text, place.client.post("/alerts/query", json={"project_id": project}).text]
    assert not any(TOKEN in text for text in told) and '"url_hint":"http://127.0.0.1/…en42"' in told[1]
    for path in place.data.rglob("*"):
        assert not path.is_file() or TOKEN.encode() not in path.read_bytes(), path


def test_a_stored_address_that_is_no_longer_accepted_is_named_and_the_other_targets_are_told(tmp_path: Path) -> None:
    """Its rule was judged no more, and its problem was "the rule is none"."""
    project, data = "team/stored", tmp_path / "data"
    with receiving_plain() as (webhook, url), taking_mail() as mail:
        settings = {"model": "none", "alert_interval": 0.2, "alert_webhooks": url, "smtp": mail.address}
        settings["alert_emails"] = "@example.com"
        targets = [{"kind": "email", "to": ["ann@example.com"]}, {"kind": "webhook", "url": f"{url}/own"}]
        with HeddleProcess(data, **settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            stored = Place(client, webhook, url, mail, data)
            made = stored.create(project, targets, enabled=False).json()["alert"]
        with contextlib.closing(sqlite3.connect(data / "heddle.db")) as database, database:
            database.execute("UPDATE alert_rules SET rule = replace(rule, 'ann@', '(ann)@'), is_enabled = 1")
        with HeddleProcess(data, **settings) as server, httpx.Client(base_url=server.url, timeout=60) as client:
            stored = Place(client, webhook, url, mail, data)
            until(lambda: webhook.bodies != [], "the webhook told")
            [alert] = client.post("/alerts/query", json={"project_id": project}).json()["alerts"]
            assert (alert["state"], alert["problem"]) == ("firing", "to: '(ann)@example.com' is not an email address")
            until(lambda: all(item["attempts"] for item in stored.deliveries(project)), "both attempts")
            assert {item["error"] for item in stored.deliveries(project)} == {None, alert["problem"]}
            body = {"project_id": project, "id": made["id"], "name": "x", **RULE, "targets": alert["rule"]["targets"]}
            refused = client.post("/alerts/update", json=body)
            assert (refused.status_code, refused.json()["reason"]) == (400, alert["problem"])
        assert mail.mails == []


@pytest.mark.parametrize("end", ["\r", "\n", "\v", "\x1c", "\x85", "\u2028", "\0"])
def test_a_name_of_several_lines_is_mailed_as_one(place: Place, end: str) -> None:
    """Its mail was tried every five seconds for ever."""
    project, before = f"team/lines{ord(end)}", len(place.mail.mails)
    made = place.create(project, [{"kind": "email", "to": ["ann@example.com"]}], name=f"one{end}two")
    assert made.status_code == 200, made.text
    until(lambda: len(place.mail.mails) > before, "the mail")
    assert place.mail.mails[before]["Subject"] == f"one two is firing in {project}"


def test_a_mail_server_without_end_is_left(place: Place) -> None:
    """Its thread read for ever, and kept all of it."""
    project, place.mail.greets_forever = "team/endless", True
    place.create(project, [{"kind": "email", "to": ["ann@example.com"]}])
    until(lambda: any(item["attempts"] for item in place.deliveries(project)), "an attempt")
    place.mail.greets_forever = False
    [delivery] = place.deliveries(project)
    assert "more than 65536 bytes" in delivery["error"], delivery


def test_who_was_refused_is_mailed_again_alone(place: Place) -> None:
    """The mail counted as delivered as soon as one receiver was taken."""
    project, receivers = "team/some", ["ann@example.com", "bob@ops.example.com"]
    place.mail.refused = {receivers[1]: 1}
    assert place.create(project, [{"kind": "email", "to": receivers}]).status_code == 200
    until(lambda: any(item["attempts"] for item in place.deliveries(project)), "an attempt")
    [delivery] = place.deliveries(project)
    assert delivery["state"] == "pending" and "bob@ops.example.com" in delivery["error"], delivery
    assert delivery["body"]["to"] == receivers[1:]
    until(lambda: {item["state"] for item in place.deliveries(project)} == {"delivered"}, "delivered")
    assert place.mailed(project) == [receivers[:1], receivers[1:]]


def test_a_message_to_a_target_that_was_removed_is_not_tried_for_a_day(place: Place) -> None:
    project = "team/removed"
    place.mail.refuse = 1
    made = place.create(
        project, [{"kind": "email", "to": ["ann@example.com"]}, {"kind": "webhook", "url": f"{place.url}/own"}]
    )
    alert = made.json()["alert"]
    mail, webhook = alert["rule"]["targets"]

    def message() -> Json:
        return next((one for one in place.deliveries(project) if one["target"] == mail["id"]), {})

    until(lambda: message().get("attempts") == 1, "the mail is refused")
    body = {"project_id": project, "id": alert["id"], "name": "other", **alert["rule"], "targets": [webhook]}
    assert place.client.post("/alerts/update", json=body).status_code == 200
    until(lambda: message()["error"] == "the rule has this target no more", "it is tried again")
    assert (message()["state"], message()["attempts"], message()["next_at"]) == ("failed", 1, None)


def test_a_mail_for_nobody_who_is_still_a_receiver_is_delivered(place: Place) -> None:
    """It was tried twelve times, and then failed."""
    project, receivers = "team/changed", ["ann@example.com", "bob@ops.example.com"]
    place.mail.refused = {receivers[1]: 99}
    alert = place.create(project, [{"kind": "email", "to": receivers}]).json()["alert"]
    until(lambda: any(item["attempts"] for item in place.deliveries(project)), "an attempt")
    [target] = alert["rule"]["targets"]
    changed = {"project_id": project, "id": alert["id"], "name": "x", "enabled": False, **RULE}
    changed["targets"] = [target | {"to": receivers[:1]}]
    assert place.client.post("/alerts/update", json=changed).status_code == 200
    until(lambda: all(item["attempts"] > 1 for item in place.deliveries(project)), "another attempt")
    assert [(item["state"], item["error"]) for item in place.deliveries(project)] == [("delivered", None)]
    assert place.mailed(project) == [receivers[:1]]
    place.mail.refused = {}


@pytest.mark.parametrize("farewell", ["451 later", "nonsense", "221 " + "bye " * 5000])
def test_a_mail_that_was_taken_is_not_sent_again(place: Place, farewell: str) -> None:
    """What the server said to QUIT made it one that was refused."""
    project, place.mail.farewell = f"team/quit{len(farewell)}", farewell
    assert place.create(project, [{"kind": "email", "to": ["ann@example.com"]}]).status_code == 200
    until(lambda: any(item["attempts"] for item in place.deliveries(project)), "an attempt")
    place.mail.farewell = "221 bye"
    [delivery] = place.deliveries(project)
    assert delivery["state"] == "delivered" and len(place.mailed(project)) == 1, delivery


def test_one_target_is_tested_and_slack_keeps_its_address(place: Place) -> None:
    project = "team/one"
    targets = [{"kind": "slack", "url": f"{place.url}/services/A"}, {"kind": "email", "to": ["ann@example.com"]}]
    alert = place.create(project, targets, enabled=False).json()["alert"]
    slack, mail = alert["rule"]["targets"]
    before = len(place.mail.mails)
    named = {"project_id": project, "id": alert["id"]}
    assert len(place.client.post("/alerts/test", json={**named, "target": mail["id"]}).json()["delivery_ids"]) == 1
    until(lambda: len(place.mail.mails) == before + 1, "a test mail")
    assert place.mail.mails[-1]["Subject"] == "Too <many> & more sends a test in team/one"
    assert place.client.post("/alerts/test", json={**named, "target": "nothing"}).status_code == 404
    changed = {**RULE, **named, "name": "new", "enabled": False, "targets": [{"kind": "slack", "id": slack["id"]}]}
    answer = place.client.post("/alerts/update", json=changed)
    assert answer.json()["alert"]["rule"]["targets"] == [slack]
    seen = len(place.slack.bodies)
    assert place.client.post("/alerts/test", json=named).json()["delivery_ids"] != []
    until(lambda: len(place.slack.bodies) > seen, "Slack told")
    assert place.slack.bodies[-1][0] == "/services/A" and place.slack.bodies[-1][1]["text"].startswith("new sends")


@pytest.mark.parametrize(
    ("target", "status", "words"),
    [
        ({"kind": "pager", "url": "{url}"}, 422, "kind"),
        ({"kind": "slack"}, 422, "url"),
        (
            {"kind": "slack", "url": "https://hooks.slack.com/services/x"},
            400,
            "targets[0].url 'https://hooks.slack.com/services/x' is not allowed",
        ),
        ({"kind": "slack", "id": "unknown"}, 400, "targets[0].url is required: the rule has no Slack target 'unknown'"),
        ({"kind": "email"}, 422, "to"),
        ({"kind": "email", "to": []}, 422, "to"),
        ({"kind": "email", "to": ["nobody"]}, 400, "is not an email address"),
        *[
            ({"kind": "email", "to": [f"{name}@ops.example.com"]}, 400, "is not an email address")
            for name in ("a(b", "b:c", "=?utf-8?q?a=0d=0ab?=")
        ],
        ({"kind": "email", "to": ["ann@ops.[example.com"]}, 400, "is not an email address"),
        ({"kind": "email", "to": ["eve@example.com"]}, 400, "alert_emails"),
        ({"kind": "email", "to": ["ann@example.com\nbcc: eve@x"]}, 400, "is not an email address"),
        ({"kind": "email", "to": ["ann@example.com"], "url": "{url}"}, 422, "url"),
    ],
)
def test_bad_targets_are_refused(place: Place, target: Json, status: int, words: str) -> None:
    if "url" in target:
        target = {**target, "url": target["url"].replace("{url}", place.url)}
    answer = place.create("team/bad", [target])
    assert answer.status_code == status and words in answer.text, answer.text
    assert place.create("team/bad", []).status_code == 422
    assert place.client.post("/alerts/query", json={"project_id": "team/bad"}).json() == {"alerts": []}
