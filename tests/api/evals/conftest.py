"""A server that may ask a provider of this machine, and the evaluations of a project on it."""

from collections.abc import Iterator

import pytest

from tests.conftest import Wire
from tests.support.evaluations import Lab
from tests.support.provider import FakeProvider
from tests.support.server import HeddleProcess


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeProvider]:
    """A provider that the server below is allowed to ask."""
    with FakeProvider() as fake:
        yield fake


@pytest.fixture(scope="module")
def evaluating(tmp_path_factory: pytest.TempPathFactory, provider: FakeProvider) -> Iterator[HeddleProcess]:
    """A server that knows the provider as `fake`, without a model of its own; its log stays free of tracebacks."""
    folder = tmp_path_factory.mktemp("evaluating") / "data"
    with HeddleProcess(folder, providers=f"fake={provider.url}", model="none") as process:
        yield process
        assert "Traceback" not in process.log()


@pytest.fixture
def lab(evaluating: HeddleProcess, project: str) -> Iterator[Lab]:
    """The evaluations of the test's project."""
    wire = Wire(evaluating.url, project)
    yield Lab(wire)
    wire.client.close()
