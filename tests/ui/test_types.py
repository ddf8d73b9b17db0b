"""The scripts of the interface have no type errors, as TypeScript sees them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
COMPILER = ROOT / ".node" / "node_modules" / ".bin" / "tsc"


def test_types_agree() -> None:
    if not COMPILER.exists() or shutil.which("node") is None:
        assert not os.environ.get("CI"), "CI has Node and TypeScript: run `make clients`"
        pytest.skip("no Node or no TypeScript: run `make clients`")
    command = [str(COMPILER), "--pretty", "false", "-p", str(Path(__file__).parent / "jsconfig.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "")
