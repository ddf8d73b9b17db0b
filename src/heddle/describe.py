"""Makes the OpenAPI description: `python -m heddle.describe` keeps it with the package, or writes it to a file."""

import sys
from pathlib import Path

from heddle.app import served_routes
from heddle.compat.description import KEPT, keep
from heddle.http.description import describe_routes
from heddle.wire import jsontext


def main() -> None:
    """Write the description of every route."""
    keep(jsontext.dumps_bytes(describe_routes(served_routes())), Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT)


if __name__ == "__main__":
    main()
