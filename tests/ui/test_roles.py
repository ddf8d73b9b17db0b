"""What each role sees: what it may not do cannot be pressed and says why; data is redacted and erased there."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Error, Locator, Page, Route, expect

from heddle.store.sqlite.database import DATABASE
from heddle.wire.keys import ROLES, Scope
from tests.conftest import Wire
from tests.support import hostile, planted, scale
from tests.support.cli import make_key
from tests.support.selection import with_breadth
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look
from tests.ui.test_safety import addresses, visit

PROJECT, OTHER, MARKER = "team/roles", "team/elsewhere", "plantedZebra77"
PEOPLE = ("viewer", "annotator", "editor", "admin")
WHO = {"annotate": "an annotator", "write": "an editor", "delete": "an admin", "admin": "an admin"}
NARROW = {"width": 390, "height": 800}


@dataclass(frozen=True)
class Site:
    """A server with a call, a dataset and a queue, a client of its operator, and a key of each role."""

    process: HeddleProcess
    client: httpx.Client
    keys: dict[str, str]
    call: dict[str, str]
    queue: str

    def sign_in(self, page: Page, who: str) -> None:
        """Give the browser the session of a key."""
        url = self.process.url
        own = {"x-heddle-ui": "1", "origin": url}
        session = httpx.post(f"{url}/_ui/session", json={"key": self.keys[who]}, headers=own).cookies["heddle_session"]
        page.context.add_cookies([{"name": "heddle_session", "value": session, "url": url, "httpOnly": True}])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The server of this module."""
    data = tmp_path_factory.mktemp("roles") / "data"
    keys = {"root": make_key(data, "root", "--role", "admin")}
    keys["reader"] = make_key(data, "reader", "--role", f"viewer:{PROJECT}")
    keys |= {role: make_key(data, role, "--role", f"{role}:{PROJECT}", "--role", f"admin:{OTHER}") for role in PEOPLE}
    with (
        HeddleProcess(data, auth="on", alert_webhooks="http://127.0.0.1:9/") as process,
        httpx.Client(base_url=process.url, auth=("api", keys["root"]), timeout=60) as client,
    ):
        call = planted.plant(client, PROJECT, "kept", "kept")
        planted.publish(client, PROJECT, "kept", "words")
        queue = planted.send(client, "/annotation_queues", {"project_id": PROJECT, "name": "queue", "scorer_refs": []})
        yield Site(process, client, keys, call, queue["id"])


@pytest.fixture(autouse=True)
def watched(page: Page, site: Site) -> Iterator[Watched]:
    """Fail on errors of the page."""
    watched = Watched(page, site.process.url)
    yield watched
    assert watched.problems() == []


def check(found: Locator, role: str, scope: str) -> None:
    """Fail unless what needs a scope can be pressed by the role that has it, and says to others who may."""
    if scope in ROLES[role] or Scope.ADMIN in ROLES[role]:
        expect(found).to_be_enabled()
    else:
        expect(found).to_be_disabled()
        expect(found).to_have_attribute("title", f"Only {WHO[scope]} of {PROJECT} may do this")


@pytest.mark.parametrize("role", with_breadth(PEOPLE, keep=2))
def test_what_a_role_may_not_do_cannot_be_pressed(page: Page, site: Site, role: str) -> None:
    site.sign_in(page, role)
    place = f"{site.process.url}/{PROJECT}/weave"
    buttons = [
        ("datasets", "New dataset", "write"),
        ("queues", "New queue", "write"),
        ("alerts", "New alert", "write"),
        ("evaluations", "New evaluation", "write"),
    ]
    for path, name, scope in buttons:
        page.goto(f"{place}/{path}")
        check(page.get_by_role("button", name=name).first, role, scope)
    page.goto(f"{place}/queues/{site.queue}")
    page.get_by_role("button", name="More").first.click()
    check(page.get_by_role("menuitem", name="Edit"), role, "write")
    check(page.get_by_role("menuitem", name="Delete queue"), role, "delete")
    page.goto(f"{place}/traces/{site.call['trace']}?call={site.call['call']}")
    check(page.get_by_role("button", name="Add to dataset"), role, "write")
    page.get_by_role("tab", name="Feedback").click()
    check(page.get_by_role("button", name="Good", exact=True).first, role, "annotate")
    look(page, f"call-as-{role}")
    page.get_by_role("button", name="More", exact=True).first.click()
    check(page.get_by_role("menuitem", name="Delete"), role, "delete")
    page.goto(f"{place}/settings")
    expect(page.get_by_role("heading", name="Redaction")).to_be_visible()
    expect(page.get_by_role("button", name="Change redaction")).to_have_count(int(role == "admin"))
    expect(page.get_by_role("button", name="Erase")).to_have_count(int(role == "admin"))
    expect(page.get_by_label("Calls are kept")).to_be_enabled(enabled=role == "admin")
    page.get_by_role("tab", name="Storage").click()
    expect(page.get_by_text("Storage is for admins")).to_be_visible()


@pytest.mark.thorough
@scale.on_sqlite
def test_an_admin_redacts_and_erases_and_the_audit_log_says_so(page: Page, site: Site) -> None:
    data: Path = site.process.data
    going = planted.plant(site.client, PROJECT, MARKER, "going", user="ada")
    site.sign_in(page, "admin")
    page.goto(f"{site.process.url}/{PROJECT}/weave/settings")
    page.get_by_role("button", name="Change redaction").click()
    dialog = page.get_by_role("dialog", name="Redact before storing")
    dialog.get_by_label("Kinds").fill("email, key")
    look(page, "settings-redaction-form")
    dialog.get_by_role("button", name="Save").click()
    card = page.get_by_role("region", name="Redaction").or_(page.locator("section", has_text="Redaction")).first
    expect(card).to_contain_text("email, key")
    sent = planted.call(PROJECT, "mail", "mail", inputs={"text": "to zebra77@example.com"})
    planted.send(site.client, "/v2/team/roles/calls/complete", {"batch": [sent]})
    page.reload()
    expect(card).to_contain_text("1 email")
    assert planted.rows_with(data / DATABASE, "zebra77@example.com") == []
    assert planted.files_with(data, MARKER)
    page.get_by_role("button", name="Erase", exact=True).click()
    dialog = page.get_by_role("dialog", name="Erase data permanently")
    dialog.get_by_label("What").select_option("user")
    dialog.get_by_label("Id or name").fill(going["user"])
    look(page, "settings-erase-form")
    dialog.get_by_role("button", name="Erase").click()
    expect(page.get_by_role("status").filter(has_text="Erased:")).to_contain_text("2 calls", timeout=120_000)
    assert planted.files_with(data, MARKER) == []
    look(page, "settings-project", narrow=True)
    page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
    page.get_by_role("tab", name="Audit log").click()
    log = page.get_by_role("table", name="Audit log")
    for action in ("redaction.update", "purge.request", "purge"):
        expect(log.get_by_role("row").filter(has=page.get_by_text(action, exact=True)).first).to_contain_text("admin")


def test_a_key_that_expires_ends_its_session(page: Page, site: Site, watched: Watched) -> None:
    late = make_key(site.process.data, "late", "--role", f"viewer:{PROJECT}", "--expires", "8s")
    site.keys["late"] = late
    site.sign_in(page, "late")
    page.goto(f"{site.process.url}/{PROJECT}/weave/datasets")
    expect(page.get_by_role("button", name="Log out late")).to_be_visible()
    headers = {"authorization": f"Bearer {late}"}
    while httpx.get(f"{site.process.url}/v1/models", headers=headers).status_code != 401:
        pass
    watched.allow("401")
    page.goto(f"{site.process.url}/{PROJECT}/weave/datasets")
    expect(page.get_by_label("API key")).to_be_visible()


PRESS = (Path(__file__).parent / "press.js").read_text()
FORGED = re.compile(r"(grants&quot;: ?\[\[&quot;[^&]*&quot;, ?\[)[^\]]*")


def press_all(page: Page, path: str) -> tuple[list[str], list[str]]:
    """Press every control of a page, and what they open; returns what was pressed, and the writes that were refused."""
    place: list[int] | None = [0, 0]
    pressed: list[str] = []
    refused: list[str] = []
    while place is not None:
        visit(page, path)
        try:
            place = page.evaluate("place => pressAll(place)", place)
            told = page.evaluate("pressedControls()")
        except Error as error:
            assert "navigation" in str(error), error
            place, told = [place[0] + 1, 0], {"pressed": [], "refused": []}
        pressed += told["pressed"]
        refused += told["refused"]
    return pressed, refused


@pytest.fixture(scope="module")
def full(site: Site) -> hostile.Hostile:
    """A project with something on each page."""
    wire = Wire(site.process.url, PROJECT)
    wire.client.close()
    wire.client = site.client
    made = hostile.write(wire)
    for kind, names in (
        ("tags", {"tags": ["old"]}),
        ("aliases", {"aliases": ["best"], "digest": made.parts["version"]}),
    ):
        version = f"/versions/{made.parts['version']}" if kind == "tags" else ""
        told = site.client.put(f"/objs/prompt{version}/{kind}", json={"project_id": PROJECT, **names})
        assert told.status_code == 200, told.text
    rule = {"name": "many", "metric": "count", "operator": ">", "threshold": 1e9, "webhook_url": "http://127.0.0.1:9/x"}
    planted.send(site.client, "/alerts/create", {"project_id": PROJECT, **rule})
    return made


@pytest.mark.thorough
def test_nothing_that_can_be_pressed_is_refused(
    page: Page, site: Site, full: hostile.Hostile, watched: Watched
) -> None:
    watched.allow(".")
    page.add_init_script(PRESS)
    site.sign_in(page, "reader")
    problems: dict[str, list[str]] = {}
    pressed: list[str] = []
    for shown, path in addresses(full.project, full.parts):
        found, refused = press_all(page, site.process.url + path)
        pressed += found
        if refused:
            problems[f"{shown} {path}"] = sorted(set(refused))
    assert not problems, json.dumps(problems, indent=1)
    assert len(pressed) > 300 and {"Columns", "Filter"} <= {*pressed}, sorted(set(pressed))


def test_pressing_finds_what_would_be_refused(page: Page, site: Site, full: hostile.Hostile, watched: Watched) -> None:
    """A page that takes a viewer for an admin sends what is refused."""
    watched.allow(".")
    page.add_init_script(PRESS)
    site.sign_in(page, "reader")

    def forge(route: Route) -> None:
        answer = route.fetch()
        text, count = FORGED.subn(r"\1&quot;write&quot;,&quot;annotate&quot;,&quot;delete&quot;", answer.text())
        assert count
        route.fulfill(response=answer, body=text)

    place = f"{site.process.url}/{PROJECT}/weave/objects/prompt/versions/{full.parts['version']}"
    page.route(place, forge)
    refused = {line.partition(": ")[2] for line in press_all(page, place)[1]}
    for method, path in (("PUT", "tags"), ("POST", "tags/remove"), ("PUT", "aliases"), ("POST", "/aliases/remove")):
        assert any(line.startswith(method) and line.endswith(path) for line in refused), (path, refused)
