"""Branch coverage of each package, `make coverage`: what tests run, also in processes that they start.

`ARGS='tests/unit --package store'` are words for pytest; without any, the unit tests and those of the API run.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import coverage

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".cache" / "coverage"
SETTINGS = """[run]
branch = true
source = {source}
data_file = {data}
parallel = true
concurrency = thread
sigterm = true
patch =
    subprocess
    fork
    _exit

[report]
exclude_also =
    if TYPE_CHECKING:
    raise NotImplementedError
"""
COUNTS = ("covered_lines", "num_statements", "covered_branches", "num_branches")


def measure(words: list[str]) -> int:
    """Run pytest with these words, and print the table; returns the exit code of pytest."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    settings = FOLDER / "settings"
    settings.write_text(SETTINGS.format(source=ROOT / "src" / "heddle", data=FOLDER / "data"), encoding="utf-8")
    run = [sys.executable, "-m", "coverage"]
    tests = ["-m", "pytest", "-q", "-p", "tools.coverage", *words]
    code = subprocess.run([*run, "run", f"--rcfile={settings}", *tests], cwd=ROOT).returncode
    report = FOLDER / "report.json"
    for command in (["combine", "-q"], ["json", "-q", "-o", str(report)]):
        subprocess.run([*run, command[0], f"--rcfile={settings}", *command[1:]], cwd=ROOT, check=True)
    print(table(json.loads(report.read_text(encoding="utf-8"))))
    return code


def pytest_sessionfinish() -> None:
    """Keep what this process of pytest ran: a worker that takes more than ten seconds to end is killed."""
    running = coverage.Coverage.current()
    if running is not None:
        running.stop()
        running.save()


def table(report: Any) -> str:
    """The shares of lines and branches by package, and of all of them."""
    sums: dict[str, Counter[str]] = {}
    for path, file in report["files"].items():
        parts = Path(path).relative_to("src/heddle").parts
        for name in (f"{parts[0]}/" if len(parts) > 1 else "(top)", "all"):
            sums.setdefault(name, Counter()).update({key: file["summary"][key] for key in COUNTS})
    lines = ["| package | statements | run | branches | taken |", "|---|---|---|---|---|"]
    for name, found in sorted(sums.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        shares = (_share(found, "covered_lines", "num_statements"), _share(found, "covered_branches", "num_branches"))
        lines.append(f"| {name} | {found['num_statements']} | {shares[0]} | {found['num_branches']} | {shares[1]} |")
    return "\n".join(lines)


def _share(found: Counter[str], part: str, whole: str) -> str:
    return f"{100 * found[part] / found[whole]:.1f} %" if found[whole] else "-"


if __name__ == "__main__":
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    raise SystemExit(
        measure(sys.argv[1:] or ["tests/unit", "tests/api", "-m", "not thorough", "-n", str(os.cpu_count())])
    )
