"""`make release` in a clone: it changes nothing by itself, refuses what cannot be released, and makes a release."""

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]


def run(clone: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, cwd=clone, capture_output=True, text=True, check=False)


def release(clone: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return run(clone, sys.executable, "-m", "tools.release", *words)


def git(clone: Path, *words: str) -> str:
    done = run(clone, "git", "-c", "user.name=tester", "-c", "user.email=tester@example.com", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone with the files of this checkout, committed."""
    if run(ROOT, "git", "rev-parse").returncode:
        pytest.skip("this is no clone of the repository")
    place = tmp_path / "clone"
    git(ROOT, "clone", "--quiet", "--no-hardlinks", "--depth", "1", f"file://{ROOT}", str(place))
    listed = git(ROOT, "ls-files", "-co", "--exclude-standard").splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), listed):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes((ROOT / name).read_bytes())
    for name in ("user.name", "user.email"):
        git(place, "config", name, "tester@example.com")
    git(place, "add", "--all")
    git(place, "commit", "--quiet", "--allow-empty", "--message", "As it is")
    return place


def test_a_dry_run_changes_nothing(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    told = release(clone, "9.9.9")
    assert told.returncode == 0 and "would become 9.9.9" in told.stdout and "nothing was changed" in told.stdout
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain"), git(clone, "tag")) == (before, "", "")


def test_what_cannot_be_released_is_refused(clone: Path) -> None:
    for version, why in (("0.0.1", "does not follow"), ("next", "three numbers")):
        told = release(clone, version, "--commit")
        assert told.returncode == 1 and why in told.stderr
    git(clone, "tag", "v9.9.9")
    assert "already exists" in release(clone, "9.9.9", "--commit").stderr
    (clone / "README.md").write_text("changed")
    told = release(clone, "9.9.8", "--commit")
    assert told.returncode == 1 and "not committed" in told.stderr and "README.md" in told.stderr
    git(clone, "checkout", "README.md")
    changes = clone / "CHANGELOG.md"
    text = changes.read_text()
    changes.write_text(text[: text.index("## [Unreleased]")] + "## [Unreleased]\n\n## [0.1.0] - 2026-11-22\n")
    git(clone, "commit", "--all", "--quiet", "--message", "Nothing is new")
    assert "nothing under Unreleased" in release(clone, "9.9.8", "--commit").stderr
    assert git(clone, "tag") == "v9.9.9"


def test_a_release_has_version_changelog_packages_checksums_and_tag(clone: Path) -> None:
    notes = (clone / "CHANGELOG.md").read_text().partition("## [Unreleased]\n")[2].partition("\n## [")[0].strip()
    told = release(clone, "9.9.9", "--commit", "--no-sbom")
    assert told.returncode == 0, told.stdout + told.stderr
    assert git(clone, "status", "--porcelain") == "" and git(clone, "log", "-1", "--format=%s") == "heddle 9.9.9"
    assert git(clone, "rev-list", "-1", "v9.9.9") == git(clone, "rev-parse", "HEAD")
    assert git(clone, "tag", "--list", "v9.9.9", "--format=%(contents:body)") == notes
    assert 'version = "9.9.9"' in (clone / "pyproject.toml").read_text()
    assert "\nversion: 9.9.9\n" in (clone / "deploy/helm/heddle/Chart.yaml").read_text()
    assert "## [Unreleased]\n\n## [9.9.9] - 20" in (clone / "CHANGELOG.md").read_text()
    folder = clone / "dist" / "release"
    names = {"heddle_server-9.9.9-py3-none-any.whl", "heddle_server-9.9.9.tar.gz", "NOTES.md", "SHA256SUMS"}
    assert {path.name for path in folder.iterdir()} == names
    wheel = zipfile.ZipFile(folder / "heddle_server-9.9.9-py3-none-any.whl")
    assert json.loads(wheel.read("heddle/openapi.json"))["description"]["info"]["version"] == "9.9.9"
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    assert sums == {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names - {"SHA256SUMS"}}
    assert (folder / "NOTES.md").read_text().strip() == notes
