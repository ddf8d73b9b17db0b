"""Writes the files of deploy/kubernetes that the chart of deploy/helm gives: `python -m tools.kubernetes FOLDER`."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "helm" / "heddle"
OWN_HELM = ROOT / ".clients" / "helm" / "helm"
SCALED = str(CHART.relative_to(ROOT) / "values-scaled.yaml")
FIRST_KEY = ("--set", "firstKey.existingSecret=heddle-first-key")
_HOW_KEY = """# First the first key, which can do everything and makes others:
#   kubectl create secret generic heddle-first-key --from-literal=key=$(openssl rand -hex 32)
"""
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "single.yaml": (
        "# One server with SQLite on a volume of its own. The volume must be a disk, no network file system.\n"
        + _HOW_KEY,
        FIRST_KEY,
    ),
    "heddle.yaml": (
        "# Three servers that keep nothing of their own, on a ClickHouse, a PostgreSQL and a bucket that are there.\n"
        "# stores.yaml has small ones of the first two to try it with. Fill in the Secret.\n" + _HOW_KEY,
        ("--values", SCALED, *FIRST_KEY),
    ),
    "trainer.yaml": (
        "# Two machines with eight GPUs each that train for servers that run with HEDDLE_TRAINER=torchrun.\n",
        ("--values", SCALED, "--set", "trainer.enabled=true", "--show-only", "templates/trainer.yaml"),
    ),
}
"""Each file: what it begins with, and the arguments of `helm template` that give the rest."""


def find_helm() -> str | None:
    """The program of Helm, None where there is none."""
    return shutil.which("helm") or (str(OWN_HELM) if OWN_HELM.exists() else None)


def render(*arguments: str) -> str:
    """What the chart gives for the release `heddle`; raises RuntimeError with what Helm says."""
    helm = find_helm()
    assert helm is not None, "Helm is not installed: make clients"
    command = [helm, "template", "heddle", str(CHART.relative_to(ROOT)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def make_file(name: str) -> str:
    """The text of one of `FILES`."""
    head, arguments = FILES[name]
    lines = [line for line in render(*arguments).splitlines() if not line.startswith("# Source: ")]
    chart = CHART.relative_to(ROOT)
    return (
        f"{head}# Made by `make kubernetes`: helm template heddle {chart} {' '.join(arguments)}\n"
        + "\n".join(lines)
        + "\n"
    )


def main(folder: Path) -> None:
    """Write every file."""
    for name in FILES:
        (folder / name).write_text(make_file(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
