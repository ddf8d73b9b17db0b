"""How an optional part is added to this installation."""

import json
from functools import cache
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

DISTRIBUTION = "heddle-server"
"""The name under which pip knows this package."""


@cache
def install_command(*extras: str) -> str:
    """The command that adds extras, by where this installation came from (PEP 610): a checkout, a wheel, an index."""
    # Only who lacks something pays for it.
    from importlib.metadata import PackageNotFoundError, distribution

    names = ",".join(extras)
    try:
        told = distribution(DISTRIBUTION).read_text("direct_url.json")
    except PackageNotFoundError:
        return f"pip install '.[{names}]' in a checkout of heddle"
    origin = json.loads(told or "{}")
    if not origin:
        return f"pip install '{DISTRIBUTION}[{names}]'"
    if "archive_info" in origin:
        # The name alone: who reads this over HTTP need not know the folders of the server.
        wheel = PurePosixPath(unquote(urlsplit(origin["url"]).path)).name
        return f"pip install './{wheel}[{names}]'"
    if "vcs_info" in origin:
        kind, commit = origin["vcs_info"]["vcs"], origin["vcs_info"]["commit_id"]
        return f"pip install '{DISTRIBUTION}[{names}] @ {kind}+{origin['url']}@{commit}'"
    editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {editable}'.[{names}]' in the checkout of heddle"
