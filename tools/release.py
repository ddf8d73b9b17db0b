"""Prepares a release: the version, its section of CHANGELOG.md, packages with checksums and bills of materials, a tag.

python -m tools.release 0.2.0            # says what would be done, and changes nothing
python -m tools.release 0.2.0 --commit   # does it; nothing is pushed or uploaded
"""

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

from tools import dist

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "dist" / "release"
VERSIONS = (
    ("pyproject.toml", 'version = "{}"'),
    ("src/heddle/__init__.py", '__version__ = "{}"'),
    ("deploy/helm/heddle/Chart.yaml", "version: {}"),
)
"""Where the version stands."""
NEXT = "## [Unreleased]\n"


def git(*words: str) -> str:
    """What git prints; its failure ends the program with what it said."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"release: git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def numbers(version: str) -> tuple[int, ...]:
    """A version as numbers; ends the program for what is none."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        sys.exit(f"release: a version is three numbers such as 0.2.0, got {version!r}")
    return tuple(map(int, version.split(".")))


def current_version() -> str:
    """The version of the checkout; ends the program where its places disagree."""
    found = set()
    for name, line in VERSIONS:
        before, _, after = map(re.escape, line.partition("{}"))
        seen = re.search(f"^{before}([0-9.]+){after}$", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)
        found.add(seen[1] if seen else f"none in {name}")
    if len(found) != 1:
        sys.exit(f"release: versions disagree: {', '.join(sorted(found))}")
    return found.pop()


def unreleased() -> str:
    """What CHANGELOG.md says under Unreleased; ends the program where that is nothing."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    section = text.partition(NEXT)[2].partition("\n## [")[0].strip()
    if not re.search(r"^- ", section, re.MULTILINE):
        sys.exit("release: CHANGELOG.md has nothing under Unreleased")
    return section


def check(version: str) -> str:
    """The notes of the release; ends the program where the checkout cannot be released as this version."""
    if changed := git("status", "--porcelain"):
        sys.exit(f"release: the checkout has changes that are not committed:\n{changed}")
    if numbers(version) <= numbers(current_version()):
        sys.exit(f"release: {version} does not follow {current_version()}")
    if git("tag", "--list", f"v{version}"):
        sys.exit(f"release: the tag v{version} already exists")
    return unreleased()


def write_version(version: str) -> None:
    """The version in its places, and its section of CHANGELOG.md below an empty Unreleased."""
    old = current_version()
    for name, line in VERSIONS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace(f"\n{line.format(old)}\n", f"\n{line.format(version)}\n", 1), encoding="utf-8")
    path = ROOT / "CHANGELOG.md"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    path.write_text(path.read_text(encoding="utf-8").replace(NEXT, f"{NEXT}\n## [{version}] - {day}\n", 1))


def build(version: str, notes: str, *, has_sbom: bool) -> None:
    """Packages (built twice, which must be equal), bills of materials, notes and checksums in `dist/release`."""
    dist.build_twice(FOLDER)
    if has_sbom:
        subprocess.run(["make", "--no-print-directory", "sbom"], cwd=ROOT, check=True)
        for path in (ROOT / "dist" / "sbom").glob("*.cdx.json"):
            path.rename(FOLDER / f"heddle-server-{version}-{path.name}")
    (FOLDER / "NOTES.md").write_text(f"{notes}\n", encoding="utf-8")
    dist.write_checksums(FOLDER)


def main() -> None:
    """Check, and with --commit write, commit, build and tag; a build that fails leaves neither commit nor tag."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version")
    parser.add_argument("--commit", action="store_true", help="do it; without this nothing changes")
    parser.add_argument("--no-sbom", action="store_true", help="without bills of materials")
    given = parser.parse_args()
    notes = check(given.version)
    if not given.commit:
        print(
            f"release: {current_version()} would become {given.version}, with the tag v{given.version} and these notes:"
        )
        print(f"\n{notes}")
        print("\nrelease: nothing was changed; --commit does it (make release VERSION=... ARGS=--commit)")
        return
    write_version(given.version)
    git("commit", "--all", "--message", f"heddle {given.version}")
    try:
        build(given.version, notes, has_sbom=not given.no_sbom)
    except BaseException:
        git("reset", "--hard", "HEAD~1")
        raise
    git(
        "tag",
        "--annotate",
        f"v{given.version}",
        "--cleanup=verbatim",
        "--message",
        f"heddle {given.version}\n\n{notes}",
    )
    print(f"release: {', '.join(sorted(path.name for path in FOLDER.iterdir()))} in {FOLDER.relative_to(ROOT)}")
    print(f"release: tagged v{given.version}; publish it with: git push origin HEAD v{given.version}")


if __name__ == "__main__":
    main()
