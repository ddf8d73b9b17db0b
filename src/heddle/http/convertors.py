"""How parameters of paths are read: the rest of a path is any text, also with ends of lines, as ids may hold them."""

from starlette.convertors import PathConvertor, register_url_convertor


class RestOfPath(PathConvertor):
    """`{name:path}`."""

    regex = "(?s:.*)"


def register() -> None:
    """Read every route that is made from now on so."""
    register_url_convertor("path", RestOfPath())
