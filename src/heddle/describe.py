"""Makes the OpenAPI description: `python -m heddle.describe` keeps it with the package, or writes it to a file."""

import sys
import tempfile
from pathlib import Path

from heddle.app import create_app
from heddle.compat.description import KEPT, keep
from heddle.settings import Settings
from heddle.wire import jsontext


def main() -> None:
    """Write the description of every route."""
    with tempfile.TemporaryDirectory() as folder:
        described = create_app(Settings(data=folder)).openapi()
    keep(jsontext.dumps_bytes(described), Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT)


if __name__ == "__main__":
    main()
