"""The tests of the embedded engine again, in front of servers that speak as vLLM does (`tests/support/vllm.py`).

They run in a pytest of their own, with the switch of `tests/support/vllm_server.py`; what may differ is listed in
`tests/support/vllm_differences.py`. The short run takes what an engine can get wrong by itself: sampling, endings,
log-probabilities, constraints, adapters and streams. `make soak` runs everything.
"""

import os
import subprocess
import sys

import pytest

from tests.support.vllm_differences import IN_ANY_CASE, WITH_A_REAL_SERVER
from tests.support.vllm_server import LOOK_ALIKE, ROOT

pytestmark = pytest.mark.thorough

SHORT = [
    "tests/api/inference/test_chat.py",
    "tests/api/inference/test_sampling.py",
    "tests/api/inference/test_fields_ending.py",
    "tests/api/inference/test_fields_logprobs.py",
    "tests/api/inference/test_stream.py",
    "tests/api/inference/test_text_completions.py",
]
WHOLE = ["tests/api/inference", "tests/conformance/test_golden_chat.py", "tests/clients/test_openai_python.py"]
IS_SOAK = os.environ.get("HEDDLE_SOAK") == "1"


def test_the_same_tests_pass_behind_vllm() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HEDDLE_", "PYTEST_"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-q",
        "-p",
        "no:cacheprovider",
        *(WHOLE if IS_SOAK else SHORT),
    ]
    done = subprocess.run(
        [*command, "--deselect", "tests/api/inference/test_vllm_servers.py"],
        cwd=ROOT,
        env=environment | {"HEDDLE_TEST_VLLM": LOOK_ALIKE},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout and " failed" not in done.stdout, done.stdout[-2000:]


@pytest.mark.parametrize("listed", [*IN_ANY_CASE, *WITH_A_REAL_SERVER])
def test_listed_differences_are_tests(listed: str) -> None:
    """A renamed test must not leave its excuse behind."""
    file, _, name = listed.partition("::")
    assert f"def {name}" in (ROOT / "tests" / file).read_text(encoding="utf-8")
