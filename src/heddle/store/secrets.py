"""Secrets of others that a server must read again, encrypted at rest: AES-256-GCM, with a key outside the database."""

import base64
import binascii
import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from heddle.errors import ExtraMissing, HeddleError
from heddle.extras import install_command
from heddle.settings import Settings
from heddle.store.data_folder import secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_FILE = "secrets.key"
"""The file of the data folder with the key, where no setting gives one; backups do not hold it."""
_FORM = "aesgcm:"
_NONCE = 12


class SecretUnreadable(HeddleError):
    """A stored secret was encrypted with another key than the one that there is now."""

    status = 409


class Secrets:
    """Encrypts and decrypts texts; `place` (a table and a name) is part of each, so that none can stand for another."""

    def __init__(self, settings: Settings) -> None:
        self._folder = Path(settings.data)
        self._given = settings.secrets_key if settings.secrets_key != "none" else ""

    def encrypt(self, text: str, place: str) -> str:
        """What may be stored of a text; raises ExtraMissing."""
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._cipher().encrypt(nonce, text.encode(), place.encode())
        return _FORM + base64.b64encode(sealed).decode()

    def protect(self, text: str, place: str) -> str:
        """The same, or the text as it is where the extra is missing, for what is no secret of another service."""
        try:
            return self.encrypt(text, place)
        except ExtraMissing:
            return text

    def decrypt(self, stored: str, place: str) -> str:
        """The text again; raises SecretUnreadable and ExtraMissing. What was stored before secrets were is returned."""
        if not stored.startswith(_FORM):
            return stored
        cipher = self._cipher()
        from cryptography.exceptions import InvalidTag

        try:
            sealed = base64.b64decode(stored.removeprefix(_FORM), validate=True)
            return cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], place.encode()).decode()
        except (InvalidTag, binascii.Error, ValueError):
            raise SecretUnreadable(
                f"The secret of {place} was encrypted with another key: start with its HEDDLE_SECRETS_KEY, put back "
                f"the file {KEY_FILE} of its data folder, or enter the secret again"
            ) from None

    def _cipher(self) -> "AESGCM":
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ExtraMissing(
                f"Secrets are stored encrypted, which requires cryptography: {install_command('secrets')}"
            ) from None
        key = self._given.encode() if self._given else secret(self._folder, KEY_FILE)
        return AESGCM(hashlib.sha256(b"heddle secrets\0" + key).digest())
