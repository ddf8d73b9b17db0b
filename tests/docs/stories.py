"""What a page takes for granted, what its reader fills in, what it leaves behind; and what cannot run here."""

import json
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
import yaml

from heddle.inference.served_model import TINY_FOLDER
from heddle.setting_kinds import read_group_roles
from heddle.settings import load
from heddle.training.schemas.requests import CreateJobFromSource, PromotionRequest
from tests.docs.blocks import ROOT
from tests.docs.desk import Desk
from tests.support import scale
from tests.support.judges import rank_words
from tests.support.patience import strain
from tests.support.provider import FakeProvider
from tests.support.replayed import replay, served
from tests.support.s3 import S3Server
from tests.support.server import free_port
from tests.support.vllm_server import COMMAND, LookAlikeProcess

_CLAUDE = "Claude Code is no package of the tests: tests/clients/compatibility runs it"
NOT_RUN = {
    ("README.md", "export ANTHROPIC_BASE_URL"): _CLAUDE,
    ("docs/clients.md", "ANTHROPIC_BASE_URL"): _CLAUDE,
    ("CONTRIBUTING.md", ".venv/bin/pytest tests/unit/inference"): "tests, in a test",
    ("CONTRIBUTING.md", ".venv/bin/pytest tests/ui"): "tests, in a test",
    ("CONTRIBUTING.md", ".venv/bin/pytest tests/unit/training"): "tests, in a test",
    ("docs/deploying.md", "useradd"): "systemd: tests/unit/test_systemd.py reads its units",
    ("docs/deploying.md", "cp -r deploy/nginx"): "nginx of the machine: tests/api/test_nginx.py runs one of its own",
    ("docs/deploying.md", "export HEDDLE_BOOTSTRAP_KEY"): "Docker: tests/api/test_deployments.py starts what it would",
    ("docs/deploying.md", "kubectl"): "a cluster: tests/unit/test_helm.py renders the chart",
    ("docs/operating.md", "15 3"): "a line of a crontab",
    ("docs/operating.md", "litestream"): "litestream: tests/api/test_litestream.py runs it where it is installed",
    ("docs/operating.md", "heddle export since"): "two versions of heddle: tests/api/test_upgrade.py has them",
    ("docs/training-protocols.md", "import tinker"): "the Tinker client: tests/clients/test_tinker.py runs it",
    ("docs/mcp.md", "trace 2f0c"): "an answer that is cut: tests/clients/test_mcp.py has it whole",
    ("docs/architecture.md", "SDKs"): "a drawing",
    ("docs/performance.md", "make bench"): "many minutes each: test_pages.py checks that the programs are there",
    ("docs/reliability.md", "HEDDLE_FAULT_SEED"): "tests, in a test",
    ("docs/reliability.md", "HEDDLE_SIM_SEED"): "tests, in a test",
    ("docs/tiny-model.md", "python -m tools.tiny_model"): "48 minutes of training",
    (
        "docs/training.md",
        "export TORCH_DISABLE",
    ): "two machines: tests/unit/training/trainer/test_nodes.py has two of one",
    ("docs/training-protocols.md", "scored = await"): "test_art.py::test_the_clients_own_ruler has it",
    ("docs/training.md", "srun"): "Slurm",
    ("docs/training.md", "python -c"): "a Ray cluster",
    ("docs/training.md", "torchrun --nproc-per-node 4"): "four processes: test_nodes.py has two",
    (
        "docs/transfer.md",
        "heddle import weave",
    ): "an account: tests/unit/transfer/test_weave.py imports from heddle itself",
    **{
        ("docs/transfer.md", f"SELECT {words}"): "DuckDB: tests/api/test_parquet_export.py runs it"
        for words in ("date_trunc", "op, count", "op, regexp", "id, inputs", "c.op")
    },
}
"""Why a block is not run, by its page and its beginning."""

ENDS_WITH = {
    ("docs/transfer.md", "heddle import phoenix"): 3,
    ("docs/transfer.md", "heddle import langfuse"): 3,
}
"""Exit codes other than 0: what was recorded holds something that an import leaves out."""

IN_MODULE = {
    ("CONTRIBUTING.md", "def _add_region"): "heddle.store.clickhouse.schema",
    ("CONTRIBUTING.md", "MYLIB"): "heddle.trace.otel.conventions.products",
}
"""Python that is a part of a module of heddle, and not a program."""

INSTEAD = {
    ("README.md", "heddle serve --store"): "heddle settings --store",  # docs/scaling.md has it run
    ("docs/deploying.md", "--otlp-grpc-port 4317"): "--otlp-grpc-port 0",
    ("docs/operating.md", "--every 1d --keep 7"): "--keep 7",
    ("docs/training.md", "range(25)"): "range(2)",
    ("docs/transfer.md", "old/name=new/name"): "acme/support=new/name",
    ("docs/transfer.md", "langfuse ./export"): "langfuse ./of-langfuse",
}
"""What stands for the words of a page, which would take other machines, a port that others have, or much time."""

RECORDED = ROOT / "tests" / "data" / "imports"
_SECONDS = 60.0


def _ask(desk: Desk, path: str, **body: Any) -> Any:
    answer = httpx.post(
        desk.url + path, json=body, headers={"authorization": "Bearer any"}, timeout=_SECONDS * strain()
    )
    assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text[:1000]}"
    return answer.json() if answer.headers["content-type"] == "application/json" else answer.text.splitlines()


def _names(desk: Desk, project: str) -> list[str]:
    """The ops of all calls of a project, by name."""
    calls = map(json.loads, _ask(desk, "/calls/stream_query", project_id=project))
    return sorted(call["op_name"].rpartition("/")[2].partition(":")[0] for call in calls)


# Before a page.

QUESTIONS = """
import os
os.environ |= {"WANDB_BASE_URL": "http://127.0.0.1:8470", "WANDB_API_KEY": "k" * 40}
import weave

class ContainsScorer(weave.Scorer):
    pass

weave.init("my-team/my-project")
rows = [{"question": "Repeat: red sun", "target": "red sun"}]
scorers = [ContainsScorer(name="contains")]
weave.publish(weave.Evaluation(name="questions", dataset=weave.Dataset(rows=rows), scorers=scorers))
"""
"""The evaluation that the README speaks of, as its reader would have made it."""


def _have_questions(desk: Desk, ends: ExitStack) -> None:
    desk.serve()
    desk.python(QUESTIONS)
    desk.stop()


def _have_other_products(desk: Desk, ends: ExitStack) -> None:
    """Databases, Phoenix and MLflow as recorded, and an export of Langfuse."""
    _have_databases(desk, ends)
    _have_chats(desk, ends)
    desk.environment["KEY"] = "any"
    for name, port in (("phoenix", 6006), ("mlflow", 5000)):
        exchanges = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
        desk.words[f"http://localhost:{port}"] = ends.enter_context(served(replay(exchanges)))
    for part in ("observations", "scores"):
        folder = desk.folder / "of-langfuse" / {"observations": "observations_v2"}.get(part, part)
        folder.mkdir(parents=True)
        shutil.copy(RECORDED / f"langfuse-{part}.jsonl", folder / f"{part}.jsonl")


def _have_a_judge(desk: Desk, ends: ExitStack) -> None:
    """A provider whose model is a judge."""
    provider = ends.enter_context(FakeProvider())
    provider.reply = rank_words
    desk.environment["HEDDLE_PROVIDERS"] = f"openai={provider.url}"


def _have_an_adapter(desk: Desk, ends: ExitStack) -> None:
    """A LoRA adapter of the included model (step 0 of one made for training), and look-alikes of vLLM."""
    desk.serve()
    made = _ask(desk, "/v1/preview/models", entity="a", project="b", name="c", base_model="heddle-tiny")
    step = desk.folder / "heddle-data" / "training" / made["id"] / "checkpoints" / "0000"
    desk.words["/runs/support/checkpoint-40"] = str(shutil.copytree(step, desk.folder / "checkpoint-40"))
    command = "env CUDA_VISIBLE_DEVICES={replica} /opt/vllm/bin/python -m vllm.entrypoints.openai.api_server"
    others = [ends.enter_context(LookAlikeProcess(free_port())) for _ in range(2)]
    desk.words |= {command: COMMAND, "/models/qwen": str(TINY_FOLDER)}
    desk.words |= {f"http://gpu{number}:8000": other.url for number, other in enumerate(others, 1)}
    desk.environment["PYTHONPATH"] = str(ROOT)


def _have_databases(desk: Desk, ends: ExitStack) -> None:
    """ClickHouse's engine, PostgreSQL and an object store; skips where they are not installed."""
    if (reason := scale.missing()) is not None:
        pytest.skip(reason)
    databases = scale.new_databases()
    store = ends.enter_context(S3Server())
    desk.environment |= store.variables
    desk.words |= {
        "clickhouse://user:password@clickhouse:8123/heddle": databases["store"],
        "postgresql://user:password@postgres/heddle": databases["control"],
        "s3://heddle/files": store.new_prefix(),
        "/mnt/shared": str(desk.folder / "shared"),
    }


def _have_chats(desk: Desk, ends: ExitStack) -> None:
    """Five chats in the traces of acme/support."""
    desk.serve()
    for number in range(5):
        messages = [{"role": "user", "content": f"What is {number} + {number}?"}]
        _ask(
            desk,
            "/completions/create",
            project_id="acme/support",
            inputs={"model": "heddle-tiny", "messages": messages},
        )


def _have_tokens(desk: Desk, ends: ExitStack) -> None:
    """A histogram of tokens, as the GenAI conventions have it."""
    desk.serve()
    attributes = [
        {"key": name, "value": {"stringValue": value}}
        for name, value in (("gen_ai.token.type", "input"), ("gen_ai.request.model", "gpt-4o-mini"))
    ]
    counted = {
        "startTimeUnixNano": "1767225600000000000",
        "timeUnixNano": "1767225660000000000",
        "count": 3,
        "sum": 42.0,
    }
    point = counted | {"bucketCounts": [1, 2], "explicitBounds": [16.0], "attributes": attributes}
    metric = {"name": "gen_ai.client.token.usage", "histogram": {"aggregationTemporality": 1, "dataPoints": [point]}}
    body = {"resourceMetrics": [{"scopeMetrics": [{"metrics": [metric]}]}]}
    answer = httpx.post(f"{desk.url}/v1/metrics", json=body, headers={"project_id": "team/project"}, timeout=_SECONDS)
    assert answer.status_code == 200 and not answer.json().get("partialSuccess"), answer.text


def _have_rollouts(desk: Desk, ends: ExitStack) -> None:
    """A chat of team/project with its reward, as a program leaves it."""
    desk.serve()
    began = {"project_id": "team/project", "id": "0199a3b4-0000-7000-8000-000000000001", "op_name": "chat"}
    began |= {
        "trace_id": "0199a3b4-0000-7000-8000-000000000002",
        "started_at": "2026-01-01T00:00:00Z",
        "attributes": {},
    }
    asked = {"model": "heddle-tiny", "messages": [{"role": "user", "content": "yes or no?"}]}
    said = {"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]}
    ended = {"project_id": began["project_id"], "id": began["id"], "ended_at": "2026-01-01T00:00:01Z", "summary": {}}
    _ask(desk, "/call/start", start=began | {"inputs": asked})
    _ask(desk, "/call/end", end=ended | {"output": said | {"reward": 1.0}})


def _have_a_key(desk: Desk, ends: ExitStack) -> None:
    desk.environment["KEY"] = "any"


GIVEN: dict[str, Callable[[Desk, ExitStack], None]] = {
    "README.md": _have_questions,
    "docs/access.md": _have_a_key,
    "docs/clients.md": _have_tokens,
    "docs/evaluation.md": _have_chats,
    "docs/inference.md": _have_an_adapter,
    "docs/operating.md": _have_a_key,
    "docs/scaling.md": _have_databases,
    "docs/training-protocols.md": _have_a_judge,
    "docs/training.md": _have_rollouts,
    "docs/transfer.md": _have_other_products,
}

# After a block, with what it printed.


def _note_queue(desk: Desk, printed: str) -> None:
    desk.environment["QUEUE"] = printed.split()[-1]


def _note_run(desk: Desk, printed: str) -> None:
    """The run that the program made, and one more of the same evaluation."""
    run = next(line for line in printed.splitlines() if line.endswith("}")).split()[0]
    desk.environment |= {"RUN": run, "OTHER_RUN": run}


def _note_key(desk: Desk, printed: str) -> None:
    desk.words["01a1fd51"] = next(
        words[0] for words in map(str.split, printed.splitlines()) if words[1:2] == ["ci"] and "-" in words[0]
    )[:13]


AFTER: dict[tuple[str, str], Callable[[Desk, str], None]] = {
    ("docs/annotation.md", "import weave"): _note_queue,
    ("docs/evaluation.md", "import time"): _note_run,
    ("docs/access.md", "heddle keys create"): _note_key,
}

# What is parsed by whom it is for.


def _read_collector(desk: Desk, text: str) -> None:
    """The exporter of the Collector names what heddle reads."""
    exporter = yaml.safe_load(text)["exporters"]["otlphttp"]
    assert exporter["endpoint"] and set(exporter["headers"]) == {"project_id", "wandb-api-key"}


def _read_workflow(desk: Desk, text: str) -> None:
    (desk.folder / "quality.yml").write_text(text)
    desk.shell("check-jsonschema --builtin-schema vendor.github-workflows quality.yml")


def _read_codex(desk: Desk, text: str) -> None:
    told = tomllib.loads(text)
    provider = told["model_providers"][told["model_provider"]]
    assert (provider["wire_api"], provider["base_url"]) == ("responses", "http://127.0.0.1:8470/v1")
    assert {
        name: told["otel"][name]["otlp-http"]["endpoint"].rpartition("/")[2]
        for name in ("exporter", "metrics_exporter")
    } == {
        "exporter": "logs",
        "metrics_exporter": "metrics",
    }


def _read_mcp(desk: Desk, text: str) -> None:
    """The command that a host starts answers its first request."""
    entry = json.loads(text)["mcpServers"]["heddle"]
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "host", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    done = subprocess.run(
        [entry["command"], *entry["args"]],
        input=json.dumps(request) + "\n",
        env=desk.environment | {name: desk.as_told(value) for name, value in entry["env"].items()},
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=True,
    )
    assert json.loads(done.stdout)["result"]["serverInfo"]["name"] == "heddle"


def _read_promotion(desk: Desk, text: str) -> None:
    PromotionRequest.model_validate(json.loads(text)["promotion"])


def _read_source(desk: Desk, text: str) -> None:
    CreateJobFromSource.model_validate_json(text)


def _read_archive(desk: Desk, text: str) -> None:
    """The first member of the archive that the page exports has these fields."""
    with tarfile.open(desk.folder / "all.heddle") as archive:
        first = archive.extractfile("heddle-archive.json")
        assert first is not None and set(json.load(first)) == set(json.loads(text))


def _read_log(desk: Desk, text: str) -> None:
    """A refused request leaves a line with these fields."""
    desk.serve("--log-format", "json")
    httpx.post(f"{desk.url}/call/read", json={"project_id": "team/none"}, timeout=_SECONDS)
    desk.stop()
    lines = [json.loads(line) for line in desk.log().splitlines() if line.startswith("{")]
    (seen,) = [line for line in lines if line["logger"] == "heddle.access"]
    assert set(seen) == set(json.loads(text))


def _read_settings(desk: Desk, text: str) -> None:
    """A file of settings is read as the server reads it."""
    file = desk.folder / "heddle.toml"
    file.write_text(text, encoding="utf-8")
    told = load({}, {}, str(file))
    roles = {group: list(map(str, grants)) for group, grants in read_group_roles(told.oidc_roles).items()}
    assert roles == {"platform": ["admin"], "ml": ["editor:team", "viewer:shared"], "*": ["viewer:public"]}
    assert told.needs_key


READ: dict[tuple[str, str], Callable[[Desk, str], None]] = {
    ("docs/access.md", "oidc_issuer ="): _read_settings,
    ("docs/clients.md", "model ="): _read_codex,
    ("docs/clients.md", "exporters:"): _read_collector,
    ("docs/evaluation.md", "# .github/workflows"): _read_workflow,
    ("docs/mcp.md", "{"): _read_mcp,
    ("docs/operating.md", '{"time"'): _read_log,
    ("docs/training.md", '{"promotion"'): _read_promotion,
    ("docs/training.md", '{"model_id"'): _read_source,
    ("docs/transfer.md", '{"format"'): _read_archive,
}

# After a page.


def _check_readme(desk: Desk) -> None:
    stored = _names(desk, "my-team/my-project")
    assert stored.count("lambda") + stored.count("<lambda>") == 1 and stored.count("shout") == 1, stored
    assert stored.count("Evaluation.evaluate") == 1, stored
    assert (desk.folder / "report.xml").read_text().startswith("<?xml")


def _check_start(desk: Desk) -> None:
    assert _names(desk, "me/first") == ["add"]


def _check_training(desk: Desk) -> None:
    """Both programs made steps: the one of the ART client two, the one over HTTP one."""
    assert _steps(desk) == {"maybe": 2, "polite": 1}


def _steps(desk: Desk) -> dict[str, int]:
    """The newest step of each trainable model."""
    answer = httpx.get(f"{desk.url}/v1/preview/models", headers={"authorization": "Bearer any"}, timeout=_SECONDS)
    return {model["name"]: model["latest_step"] for model in answer.json()["data"]}


def _check_protocols(desk: Desk) -> None:
    """A step on a judge's scores, one of the teacher, three of its student."""
    assert {"judged": 1, "teacher": 1, "student": 3}.items() <= _steps(desk).items()


CHECKED: dict[str, Callable[[Desk], None]] = {
    "README.md": _check_readme,
    "docs/start.md": _check_start,
    "docs/training-protocols.md": _check_protocols,
    "docs/training.md": _check_training,
}
