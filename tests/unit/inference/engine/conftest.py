"""A small random model, loaded once, and engine cores on it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from heddle.inference.engine.local.engine import EngineCore
from heddle.inference.engine.local.options import LocalOptions
from heddle.models.load import load_model
from tests.support.models import make_adapter, make_model

CoreMaker = Callable[..., EngineCore]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 model of about 100,000 parameters with 512 tokens."""
    return make_model(tmp_path_factory.mktemp("engine") / "model", model_type="qwen3")


@pytest.fixture(scope="session")
def adapters(tmp_path_factory: pytest.TempPathFactory, folder: Path) -> list[Path]:
    """Three LoRA adapters for it."""
    root = tmp_path_factory.mktemp("adapters")
    return [make_adapter(root / f"adapter-{seed}", folder, seed=seed) for seed in (1, 2, 3)]


@pytest.fixture(scope="session")
def model(folder: Path) -> Any:
    """The loaded model; its adapters are the tests' own affair."""
    return load_model(folder, device="cpu", dtype="float32")


@pytest.fixture
def make_core(model: Any, folder: Path) -> CoreMaker:
    """A core with a memory of `blocks` blocks and changed options."""

    def make(blocks: int = 4096, eos: tuple[int, ...] = (2,), **options: Any) -> EngineCore:
        kv_bytes = blocks * model.new_cache().block_bytes
        return EngineCore(model, LocalOptions(folder=folder, **options), eos, kv_bytes)

    return make
