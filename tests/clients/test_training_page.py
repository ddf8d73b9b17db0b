"""The program of docs/training.md runs as it stands there."""

from pathlib import Path

import httpx
import pytest

from tests.conftest import RESULT, ROOT
from tests.support.art import ArtClient, art_client
from tests.support.server import HeddleProcess

pytestmark = pytest.mark.client

ADDRESS = "http://127.0.0.1:8470"
ROUNDS = "range(25)"


def test_the_program_of_the_page(server: HeddleProcess, project: str, tmp_path: Path) -> None:
    """With another address, another project and two rounds."""
    client = art_client(server.url, project, tmp_path)
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    program = page.partition("```python\n")[2].partition("```")[0]
    assert ADDRESS in program and ROUNDS in program and 'project="first"' in program
    program = program.replace(ADDRESS, server.url).replace(ROUNDS, "range(2)")
    program = program.replace('project="first"', f'project="{project.partition("/")[2]}"')
    (tmp_path / "page.py").write_text(f"{program}\nprint('{RESULT}' + '{{}}')\n")
    ArtClient(client.command, tmp_path, server.url, project, tmp_path / "home").run("page.py", timeout=120)
    models = client_models(server, project)
    assert [(model["name"], model["latest_step"]) for model in models] == [("maybe", 2)]


def client_models(server: HeddleProcess, project: str) -> list[dict[str, object]]:
    """The trainable models of a project of the default entity."""
    query = {"project": project.partition("/")[2]}
    headers = {"authorization": "Bearer any"}
    answer = httpx.get(f"{server.url}/v1/preview/models", params=query, headers=headers, timeout=30)
    return list(answer.raise_for_status().json()["data"])
