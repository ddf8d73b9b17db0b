"""Which place for blobs the settings name, and how the client of S3 is set up."""

from pathlib import Path
from typing import Any

from heddle.errors import ExtraMissing, HeddleError
from heddle.extras import install_command
from heddle.settings import Settings, without_credentials
from heddle.store.blobs.base import Blobs
from heddle.store.blobs.folder import FolderBlobs
from heddle.store.blobs.object_store import ObjectBlobs
from heddle.store.data_folder import FILES

_S3_TRIES = 1
"""Of s3fs, over the two of its client: whoever waits can try again."""
_S3_CONFIG: dict[str, Any] = {
    "retries": {"mode": "standard", "total_max_attempts": 2},
    "connect_timeout": 3,
    "read_timeout": 10,
    "max_pool_connections": 64,
}


def _s3_options() -> dict[str, Any]:
    """What s3fs is made with. Raises ImportError without its client."""
    from aiobotocore.session import get_session

    session = get_session()
    session.get_component("event_emitter").register_last("before-call.s3", _send_at_once)
    return {"session": session, "config_kwargs": _S3_CONFIG}


def _send_at_once(params: dict[str, Any], **_: Any) -> None:
    """Ask for no "100 Continue": the client waits for it without an end, and it costs a round trip."""
    params["headers"].pop("Expect", None)


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
        raise HeddleError(f"files = {shown}: {scheme}:// is not an object store; for a folder use files = folder")
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise ExtraMissing(f"files = {shown} requires fsspec: {install_command('s3')}") from None
    options = {"use_listings_cache": False, "skip_instance_cache": True}
    try:
        filesystem, root = url_to_fs(address, **options, **(_s3_options() if scheme == "s3" else {}))
    except ImportError as error:
        hint = install_command("s3") if scheme == "s3" else str(error)
        raise ExtraMissing(f"files = {shown} requires another package: {hint}") from None
    except ValueError as error:
        raise HeddleError(f"files = {shown} cannot be used: {error}") from None
    if scheme == "s3":
        filesystem.retries = _S3_TRIES
    return filesystem, root
