"""What a store can do, in the verbs of the domain."""

from typing import Protocol

from heddle.store.control.costs import Costs
from heddle.store.control.feedback import FeedbackRows
from heddle.store.control.files import Files
from heddle.store.control.keys import Keys
from heddle.store.control.objects import Objects
from heddle.store.control.projects import Projects


class Store(Protocol):
    """All that is kept, one attribute per group."""

    objects: Objects
    feedback: FeedbackRows
    costs: Costs
    files: Files
    keys: Keys
    projects: Projects
