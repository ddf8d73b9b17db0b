"""What can be trained here, and whether training is possible at all."""

import asyncio
import importlib.metadata
import os
import shutil
from typing import Any

from fastapi import Response

from heddle.errors import HeddleError
from heddle.http import BearerReader, answer, group
from heddle.training.bodies.paging import page
from heddle.training.dependencies import TrainingDep
from heddle.training.service import INSTALL, Training

router = group("Training")


@router.get("/v1/preview/base-models", response_model=None)
async def list_base_models(caller: BearerReader, training: TrainingDep) -> Response:  # noqa: ARG001
    """The base models that trainable models can be made from."""
    items = []
    for base in await training.policies.base_models():
        shape = await training.models.shape(base)
        items.append(
            {
                "id": base.id,
                "object": "base_model",
                "digest": base.digest,
                "parameters": shape.parameters,
                "vocab_size": base.vocab_size,
                "max_model_len": base.max_model_len,
                "lora_targets": shape.targets,
            }
        )
    return answer(page(items, False))


@router.get("/v1/health", response_model=None)
async def health() -> Response:
    """That the server answers."""
    return answer({"status": "ok"})


@router.get("/v1/system-check", response_model=None)
async def system_check(caller: BearerReader, training: TrainingDep) -> Response:  # noqa: ARG001
    """Whether training is possible here: each check with what to do where it fails."""
    checks = [_setting(training), _extra(training), await _model(training), await asyncio.to_thread(_disk, training)]
    settings = training.settings
    workers = {
        "workers": settings.training_workers,
        "ranks": settings.training_ranks,
        "device": settings.training_device,
        "cores": len(os.sched_getaffinity(0)),
    }
    return answer({"ok": all(check["ok"] for check in checks), "checks": checks, "training": workers})


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}


def _setting(training: Training) -> dict[str, Any]:
    is_on = training.settings.training == "on"
    return _check("setting", is_on, "training = on" if is_on else "training = off; start it with --training on")


def _extra(training: Training) -> dict[str, Any]:
    if training.missing:
        return _check("extra", False, f"{', '.join(training.missing)} not installed: {INSTALL}")
    return _check("extra", True, f"torch {importlib.metadata.version('torch')}")


async def _model(training: Training) -> dict[str, Any]:
    try:
        bases = await training.policies.base_models()
    except HeddleError as error:
        return _check("base model", False, error.reason)
    names = ", ".join(base.id for base in bases)
    return _check("base model", bool(bases), names or "no model is served; start it with --model")


def _disk(training: Training) -> dict[str, Any]:
    free = shutil.disk_usage(training.settings.data).free
    return _check("disk", free > training.settings.max_training_body, f"{free} bytes free")
