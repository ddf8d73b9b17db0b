"""Bodies of heddle's own routes: a name that they do not know is refused, as what it asks for would not be done.

Bodies of the interfaces that clients bring along ignore such names (`RequestModel`): newer clients send more.
"""

from heddle.http.routing import ProjectReq, RequestModel
from heddle.wire.calls import CallConditions


class OwnBody(RequestModel, extra="forbid"):
    """A body, or a part of one."""


class OwnReq(ProjectReq, extra="forbid"):
    """A body about one project (`entity/project`)."""


class OwnCallsFilter(OwnBody, CallConditions):
    """Which calls: all conditions must hold; each list is an alternative."""
