"""Records what Phoenix and MLflow answer to `heddle import` into `tests/data/imports/`, one file per product.

    python tools/record_imports.py          # installs the products into .clients/peers/, as benchmarks/peers.py does
    python tools/record_imports.py phoenix

Each product is started, filled by its own client (`import_cases/`), and imported through a server that notes every
request with its answer. What names the machine is taken out; ids and times are new every time.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.peers import INSTALLS, SERVERS, Server, install
from tests.support.replayed import recorder, served
from tests.support.server import HeddleProcess, free_port

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "tests/data/imports"
WORDS = {"phoenix": ("--project", "shop"), "mlflow": ("--experiment", "shop")}
FOLDERS = re.compile(r"(?:/[\w.@+-]+)+/(?=[\w.-]+\.py\b)")
PRIVATE = ("mlflow.source", "mlflow.user", "mlflow.artifactLocation", "artifact_location")


def filled(name: str, server: Server) -> str:
    """Start a product, fill it through its own client; returns its address."""
    server.start()
    address = f"http://127.0.0.1:{server.port}"
    script = ROOT / "tools/import_cases" / f"{name}_data.py"
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "PATH": "/usr/bin:/bin", "HOME": str(server.folder)}
    python = INSTALLS / name / "bin/python"
    subprocess.run([str(python), str(script), address], env=environment, cwd=server.folder, check=True, timeout=300)
    return address


def import_command(name: str, source: str, target: str) -> list[str]:
    """The command that imports from one address into another."""
    words = [sys.executable, "-m", "heddle", "import", name, "--server", source, *WORDS[name]]
    return [*words, "--into", f"team/{name}", "--to", target]


def public(value: Any) -> Any:
    """The value without what names this machine."""
    if isinstance(value, dict):
        return {key: public(item) for key, item in value.items() if not key.startswith(PRIVATE)}
    if isinstance(value, list):
        return [public(item) for item in value]
    return FOLDERS.sub("", value) if isinstance(value, str) else value


def main() -> None:
    """Record the named products, all without names."""
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or sorted(WORDS):
        install(name)
        exchanges: list[dict[str, Any]] = []
        with tempfile.TemporaryDirectory() as scratch:
            server = SERVERS[name](Path(scratch) / name, free_port())
            try:
                address = filled(name, server)
                with (
                    HeddleProcess(Path(scratch) / "heddle", model="none") as heddle,
                    served(recorder(address, exchanges)) as recording,
                ):
                    subprocess.run(import_command(name, recording, heddle.url), check=False, timeout=120)
            finally:
                server.kill()
        recorded = [public(one) for one in exchanges]
        (TARGET / f"{name}.json").write_text(json.dumps(recorded, indent=1) + "\n", encoding="utf-8")
        print(f"{name}: {len(recorded)} answers", flush=True)


if __name__ == "__main__":
    main()
