"""Builds wheel and sdist twice, which must give the same bytes, and tries the wheel in a fresh environment.

python tools/dist.py dist    # prints what installing took, in seconds and MB
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
INSIDE = ("heddle/ui/static/index.html", "heddle/demo/tiny/model/model.safetensors", "heddle/py.typed")
INSIDE += ("heddle/openapi.json",)
SUMS = "SHA256SUMS"
COMMANDS = (("--version",), ("settings",), ("check", "--port", "0"), ("serve", "--help"), ("eval", "--help"))


def build(target: Path) -> dict[str, str]:
    """Build both into a folder; their SHA-256 by name. The time in them is that of the last commit."""
    moment = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True)
    environment = os.environ | {"SOURCE_DATE_EPOCH": moment.stdout.strip()}
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(target.glob("heddle_server-*"))}


def try_wheel(wheel: Path, folder: Path) -> None:
    """Install a wheel into a fresh environment, and start each command there."""
    names = zipfile.ZipFile(wheel).namelist()
    missing = [name for name in INSIDE if name not in names]
    if missing:
        sys.exit(f"dist: {wheel.name} lacks {', '.join(missing)}")
    home = folder / "environment"
    venv.create(home, with_pip=True)
    before, began = used(home), time.perf_counter()
    pip = [home / "bin/pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
    subprocess.run([*pip, wheel], check=True)
    print(f"dist: installed in {time.perf_counter() - began:.0f} s, {(used(home) - before) / 1e6:.0f} MB")
    for words in COMMANDS:
        done = subprocess.run([home / "bin/heddle", *words], cwd=folder, check=False, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"dist: heddle {' '.join(words)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")


def used(folder: Path) -> int:
    """The bytes of the files below a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file())


def build_twice(target: Path) -> None:
    """Build into a folder, which is emptied before; ends the program where a second build is not the same bytes."""
    shutil.rmtree(target, ignore_errors=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-m", "heddle.describe"], cwd=ROOT, env=environment, check=True)
    with tempfile.TemporaryDirectory() as scratch:
        made, again = build(target), build(Path(scratch))
    if made != again:
        sys.exit(f"dist: two builds differ: {made} and {again}")


def write_checksums(folder: Path) -> None:
    """SHA-256 of each file of a folder, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != SUMS)
    lines = (f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / SUMS).write_text("".join(lines))


def main() -> None:
    """Build, compare, try, and leave the files with their checksums in the folder that is named."""
    target = Path(sys.argv[1])
    build_twice(target)
    write_checksums(target)
    with tempfile.TemporaryDirectory() as scratch:
        try_wheel(next(target.glob("*.whl")), Path(scratch))
    print(f"dist: {', '.join(sorted(path.name for path in target.iterdir()))} in {target}")


if __name__ == "__main__":
    main()
