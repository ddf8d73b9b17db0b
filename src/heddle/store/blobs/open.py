"""Which place for blobs the settings name."""

from pathlib import Path
from typing import Any

from heddle.errors import ExtraMissing, HeddleError
from heddle.settings import Settings, without_credentials
from heddle.store.blobs import s3
from heddle.store.blobs.base import Blobs
from heddle.store.blobs.folder import FILES, FolderBlobs
from heddle.store.blobs.objects import ObjectBlobs

COPIES = "copies"
"""The folder of local copies inside the data folder."""
_LOCAL = ("file", "local", "memory")


def open_blobs(settings: Settings) -> Blobs:
    """The blobs of a server; asks the object store for nothing yet.

    Raises ExtraMissing without fsspec or the package of the scheme, HeddleError for a scheme that is no object store.
    """
    if settings.files == "folder":
        return FolderBlobs(Path(settings.data) / FILES)
    filesystem, root = _filesystem(settings.files)
    return ObjectBlobs(filesystem, root, Path(settings.data) / COPIES)


def _filesystem(address: str) -> tuple[Any, str]:
    """fsspec's file system of an address, and the path in it."""
    scheme, shown = address.partition("://")[0], without_credentials(address)
    if scheme in _LOCAL:
        raise HeddleError(f"files = {shown}: {scheme}:// is no object store; for a folder leave it at files = folder")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ExtraMissing(f"files = {shown} needs fsspec: pip install 'heddle[s3]'") from None
    options = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        filesystem, root = url_to_fs(address, **options, **(s3.options() if scheme == "s3" else {}))
    except ImportError as error:
        hint = "pip install 'heddle[s3]'" if scheme == "s3" else str(error)
        raise ExtraMissing(f"files = {shown} needs another package: {hint}") from None
    except ValueError as error:
        raise HeddleError(f"files = {shown} cannot be used: {error}") from None
    if scheme == "s3":
        filesystem.retries = s3.TRIES
    return filesystem, root
