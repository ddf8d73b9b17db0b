"""Records what an older heddle wrote and how it answered: `tools/record_old_data.py --source OTHER/src --name COMMIT`.

It starts the server of that checkout on each kind of store, fills a project with everything that it can hold, asks
every route that reads, stops the server in order, and packs its folder and databases into tests/data/old. The tests
then open them with the server as it is now (tests/api/test_old_data.py).
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import httpx

from tests.support import old_data, scale
from tests.support.server import free_port
from tests.support.tenants import Seeding, Tenant


def main() -> None:
    """Record both kinds of store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="the folder `src` of the older checkout")
    parser.add_argument("--name", required=True, help="its commit, which names the recording")
    arguments = parser.parse_args()
    for kind in scale.KINDS:
        with tempfile.TemporaryDirectory() as folder:
            record(arguments.source.resolve(), arguments.name, kind, Path(folder))


def record(source: Path, name: str, kind: str, folder: Path) -> None:
    """Record one kind of store, with the data folder at `folder`/data."""
    data, port = folder / "data", free_port()
    databases = scale.settings_of(kind, data)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HEDDLE_")}
    environment |= {"PYTHONPATH": str(source)}
    environment |= {f"HEDDLE_{key.upper()}": str(value) for key, value in (databases | old_data.SETTINGS).items()}
    environment["HEDDLE_ADAPTER_ROOTS"] = str(folder)
    heddle = [sys.executable, "-m", "heddle"]
    made = subprocess.run(
        [*heddle, "keys", "create", "--quiet", "--data", str(data), "--user", "root", "--scope", "admin"],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    key = made.stdout.strip()
    server = subprocess.Popen([*heddle, "serve", "--port", str(port), "--data", str(data)], env=environment)
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", headers={"authorization": f"Bearer {key}"}, timeout=60
        ) as client:
            old_data.wait_until_ready(client)
            tenant = Tenant(old_data.PROJECT, "canary")
            Seeding(client, tenant).fill(folder / "adapters")
            first, second = (old_data.ask_everything(client, tenant) for _ in range(2))
            answers = {name: first[name] for name in first if first[name] == second[name] and first[name][0] < 300}
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    target = old_data.FOLDER / f"{name}-{kind}.tar.gz"
    old_data.pack(target, folder, databases, {"key": key, "ids": tenant.ids, "answers": answers})
    print(f"{target}: {target.stat().st_size} bytes, {len(answers)} steady answers of {len(first)}")


if __name__ == "__main__":
    main()
