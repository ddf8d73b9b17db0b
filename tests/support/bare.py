"""A server whose environment lacks the packages of inference and training."""

import os
from collections.abc import Collection
from pathlib import Path

import pytest

from tests.support.server import HeddleProcess

BLOCKER = """
from importlib.machinery import PathFinder

BLOCKED = {BLOCKED!r}
find = PathFinder.find_spec


def find_others(name, path=None, target=None):
    return None if name.partition(".")[0] in BLOCKED else find(name, path, target)


PathFinder.find_spec = staticmethod(find_others)
"""
"""Makes packages as absent as if they were not installed."""


PACKAGES = ("torch", "tokenizers", "llguidance", "safetensors", "transformers", "jinja2", "numpy")


def without(folder: Path, packages: Collection[str] = PACKAGES) -> str:
    """The PYTHONPATH under which packages cannot be imported; what makes it so lies in `folder`."""
    (folder / "block").mkdir()
    (folder / "block" / "sitecustomize.py").write_text(BLOCKER.replace("{BLOCKED!r}", repr(set(packages))))
    return os.pathsep.join(path for path in (str(folder / "block"), os.environ.get("PYTHONPATH")) if path)


def bare_server(folder: Path, packages: Collection[str] = PACKAGES, **settings: object) -> HeddleProcess:
    """A started server that cannot import the packages; its files lie in `folder`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", without(folder, packages))
        return HeddleProcess(folder / "data", **settings).start()
