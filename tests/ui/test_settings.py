"""Settings: keys made and revoked, retention, limits, providers, storage, what the server was started with."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.conftest import Wire
from tests.support import scale
from tests.support.cli import heddle, make_key
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess
from tests.ui.support import Watched, look

OPERATOR = "مرحبا 🚀"
LONG = "a-very-long-user-name-of-a-service-" * 3


@pytest.fixture(scope="module")
def configured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HeddleProcess]:
    """A server of this module, as its keys and its settings show."""
    data = tmp_path_factory.mktemp("settings") / "data"
    for number in range(6):
        make_key(data, f"user-{number}", "--scope", "read", "--project", "team/website")
    make_key(data, LONG, "--entity", "team")
    make_key(data, OPERATOR, "--scope", "admin")
    providers = "openai=https://api.openai.com/v1,OPENAI_API_KEY; own=http://127.0.0.1:9000/v1"
    with HeddleProcess(data, providers=providers, max_page_rows=500, auth="on") as process:
        yield process


@pytest.fixture(scope="module")
def key(configured: HeddleProcess) -> str:
    """An admin's key of that server."""
    return make_key(configured.data, "operator", "--scope", "admin")


@pytest.fixture
def address(configured: HeddleProcess) -> str:
    """Where that server is."""
    return configured.url


@pytest.fixture
def wire(address: str, project: str, key: str) -> Iterator[Wire]:
    """Raw HTTP to it."""
    wire = Wire(address, project)
    wire.client.auth = ("api", key)
    yield wire
    wire.client.close()


@pytest.fixture(autouse=True)
def watched(page: Page, address: str, key: str) -> Iterator[Watched]:
    """Log in, and fail on errors of the page, as everywhere."""
    own = {"x-heddle-ui": "1", "origin": address}
    session = httpx.post(f"{address}/_ui/session", json={"key": key}, headers=own).cookies["heddle_session"]
    page.context.add_cookies([{"name": "heddle_session", "value": session, "url": address, "httpOnly": True}])
    watched = Watched(page, address)
    yield watched
    assert watched.problems() == []


def test_a_key_is_made_shown_once_and_revoked(page: Page, address: str) -> None:
    page.goto(f"{address}/settings")
    expect(page.get_by_role("table", name="API keys").get_by_role("row")).to_have_count(10)
    look(page, "settings-keys", narrow=True)
    page.get_by_role("button", name="Create key").click()
    dialog = page.get_by_role("dialog", name="Create key")
    dialog.get_by_label("User").fill("robot")
    dialog.get_by_role("combobox").first.select_option("viewer")
    dialog.get_by_label("Reaches").fill("team/website")
    dialog.get_by_label("Further roles").fill("editor:team/other")
    look(page, "settings-key-form")
    dialog.get_by_role("button", name="Create key").click()
    shown = page.get_by_role("dialog", name="Copy the key now")
    expect(shown.get_by_text("export WANDB_API_KEY=heddle-")).to_be_visible()
    look(page, "settings-key-made")
    shown.get_by_role("button", name="Done").click()
    row = page.get_by_role("row").filter(has_text="robot")
    expect(row.get_by_role("cell", name="editor in team/other viewer in team/website")).to_be_visible()
    more = row.get_by_role("button", name="More for the key of robot")
    more.click()
    page.get_by_role("menuitem", name="Limits").click()
    page.get_by_label("Tokens per minute").fill("1000")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Key limits updated")
    more.click()
    page.get_by_role("menuitem", name="Rotate").click()
    page.get_by_role("dialog", name="Rotate this key").get_by_role("button", name="Rotate").click()
    expect(shown.get_by_text("export WANDB_API_KEY=heddle-")).to_be_visible()
    shown.get_by_role("button", name="Done").click()
    expect(row).to_contain_text("the old secret is still valid")
    more.click()
    page.get_by_role("menuitem", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Including 1 ended").click()
    expect(row.get_by_text("revoked", exact=True)).to_be_visible()
    page.reload()
    expect(row).to_have_count(1)


@pytest.mark.thorough
def test_a_project_keeps_its_calls_as_long_as_is_said(page: Page, address: str, project: str, wire: Wire) -> None:
    wire.post("/table/create", table={"project_id": project, "rows": [{"a": 1}]})
    page.goto(f"{address}/{project}/weave/settings")
    expect(page.get_by_role("table", name="Stored in this project")).to_be_visible()
    expect(page.get_by_text("no limit").first).to_be_visible()
    look(page, "settings-project", narrow=True)
    page.get_by_label("Calls are kept").select_option("30")
    dialog = page.get_by_role("dialog", name="Delete older calls?")
    expect(dialog).to_contain_text("started more than 30 days ago are permanently deleted")
    dialog.get_by_role("button", name="Delete calls").click()
    expect(page.get_by_role("status")).to_contain_text("Retention updated")
    assert wire.post("/project/ttl_settings/read") == {"retention_days": 30}
    page.get_by_role("button", name="Change limits").click()
    page.get_by_label("Concurrent completions").fill("4")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("this project", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_label("Calls are kept")).to_have_value("30")


def test_a_project_shows_its_quotas_and_what_is_used(
    page: Page, address: str, project: str, wire: Wire, watched: Watched
) -> None:
    watched.allow("422.*v1/limits")
    page.goto(f"{address}/{project}/weave/settings")
    page.get_by_role("button", name="Change limits").click()
    page.get_by_label("Quotas").fill("planets requests 5/day")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog")).to_contain_text("Unknown group of routes 'planets'")
    page.get_by_label("Quotas").fill("files requests 5/day, disk 2GiB")
    page.get_by_role("button", name="Save").click()
    used = page.get_by_role("table", name="Used by this project")
    expect(used.get_by_role("row").filter(has_text="files requests 5/day")).to_contain_text("0 of 5")
    expect(used.get_by_role("row").filter(has_text="disk 2GiB")).to_contain_text("of 2")
    wire.post("/files/stats")
    page.reload()
    expect(used.get_by_role("row").filter(has_text="files requests 5/day")).to_contain_text("1 of 5")
    look(page, "settings-quotas", narrow=True)
    page.get_by_role("button", name="Change limits").click()
    expect(page.get_by_label("Quotas")).to_have_value("files requests 5/day, disk 2GiB")
    page.get_by_label("Quotas").fill("")
    page.get_by_role("button", name="Save").click()
    expect(used).to_have_count(0)
    rows = wire.client.get("/audit_log", params={"action": "limit.update"}).json()["rows"]
    noted = [row["details"]["quotas"] for row in rows if row["details"]["name"] == project]
    assert noted == [None, "files requests 5/day, disk 2GiB"]


def test_the_server_tells_of_itself(
    page: Page, address: str, project: str, configured: HeddleProcess, tmp_path: Path
) -> None:
    if scale.EVERYWHERE == "sqlite":
        assert heddle("backup", tmp_path / "{time}", "--data", configured.data).returncode == 0
    page.goto(f"{address}/{project}/weave/settings?tab=server")
    row = page.get_by_role("row").filter(has_text="max_page_rows")
    expect(row).to_contain_text("variable HEDDLE_MAX_PAGE_ROWS")
    look(page, "settings-server", narrow=True)
    page.get_by_role("tab", name="Server").press("ArrowLeft")
    expect(page.get_by_text("heddle backup")).to_be_visible()
    made = "Restored and checked" if scale.EVERYWHERE == "sqlite" else "No backups yet"
    expect(page.get_by_text(made)).to_be_visible()
    look(page, "settings-storage", narrow=True)
    page.get_by_role("tab", name="Providers").click()
    expect(page.get_by_role("row").filter(has_text="OPENAI_API_KEY")).to_contain_text("not set")
    look(page, "settings-providers", narrow=True)
    assert page.url.endswith("?tab=providers")


def test_a_provider_is_entered_tried_changed_and_deleted(page: Page, address: str, project: str) -> None:
    with FakeProvider() as fake:
        fake.key = "sk-right-0123456789"
        page.goto(f"{address}/{project}/weave/settings?tab=providers")
        page.get_by_role("button", name="Add provider").click()
        dialog = page.get_by_role("dialog", name="Add provider")
        dialog.get_by_label("Name").fill("acme")
        dialog.get_by_label("Address").fill(fake.url)
        dialog.get_by_label("Key").fill("sk-wrong-9876543210")
        look(page, "settings-provider-new")
        dialog.get_by_role("button", name="Save").click()
        row = page.get_by_role("row").filter(has_text="acme")
        expect(row).to_contain_text("••••3210")
        page.get_by_role("button", name="Test acme").click()
        expect(row.get_by_role("status")).to_have_text("failed")
        expect(page.get_by_text("Incorrect API key")).to_be_visible()
        page.get_by_role("button", name="More for acme").click()
        page.get_by_role("menuitem", name="Edit").click()
        page.get_by_role("dialog", name="Edit acme").get_by_label("Key").fill(fake.key)
        page.get_by_role("button", name="Save").click()
        expect(row).to_contain_text("••••6789")
        page.get_by_role("button", name="Test acme").click()
        expect(row.get_by_role("status")).to_have_text("It answers and lists 2 models")
        assert fake.key not in page.content()
        look(page, "settings-providers-entered", narrow=True)
        page.get_by_role("button", name="More for acme").click()
        page.get_by_role("menuitem", name="Delete").click()
        page.get_by_role("dialog").get_by_role("button", name="Delete").click()
        expect(row).to_have_count(0)
