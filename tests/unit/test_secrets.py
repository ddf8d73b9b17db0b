"""Secrets at rest: readable with their key in their place only."""

import sys
from pathlib import Path

import pytest

from heddle.errors import ExtraMissing
from heddle.settings import Settings
from heddle.store.secrets import KEY_FILE, Secrets, SecretUnreadable

pytest.importorskip("cryptography")


def test_a_secret_is_read_again_in_its_place_only(tmp_path: Path) -> None:
    secrets = Secrets(Settings(data=str(tmp_path)))
    stored = secrets.encrypt("sk-größe", "providers openai")
    assert "sk-gr" not in stored and stored != secrets.encrypt("sk-größe", "providers openai")
    assert Secrets(Settings(data=str(tmp_path))).decrypt(stored, "providers openai") == "sk-größe"
    with pytest.raises(SecretUnreadable, match="providers other"):
        secrets.decrypt(stored, "providers other")
    assert secrets.protect("x", "a") != "x" and secrets.decrypt(secrets.protect("x", "a"), "a") == "x"
    assert secrets.decrypt("from before", "a") == "from before"


@pytest.mark.parametrize("stored", ["aesgcm:", "aesgcm:x", "aesgcm:AAAA", "aesgcm:" + "A" * 64])
def test_what_is_no_secret_any_more_is_named(tmp_path: Path, stored: str) -> None:
    with pytest.raises(SecretUnreadable, match=f"the file {KEY_FILE}"):
        Secrets(Settings(data=str(tmp_path))).decrypt(stored, "a")


def test_the_key_of_the_setting_is_the_key(tmp_path: Path) -> None:
    one, other, same = (Secrets(Settings(data=str(tmp_path), secrets_key=key)) for key in ("k1", "k2", "k1"))
    stored = one.encrypt("x", "a")
    assert same.decrypt(stored, "a") == "x" and not (tmp_path / KEY_FILE).exists()
    with pytest.raises(SecretUnreadable, match="HEDDLE_SECRETS_KEY"):
        other.decrypt(stored, "a")


def test_without_the_extra_only_what_is_no_secret_of_others_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    secrets = Secrets(Settings(data=str(tmp_path)))
    with pytest.raises(ExtraMissing, match="secrets"):
        secrets.encrypt("x", "a")
    assert secrets.protect("x", "a") == "x"
