"""The object classes that the server itself knows, and what becomes of a value that is published as one of them.

A value of such a class is completed with the defaults of its class before its digest is computed, so names, order of
inheritance, fields and defaults are part of the wire (contract: trace-core, section 4).
"""

from heddle.trace.builtin_classes.normalise import Normalised, kind_of, normalise

__all__ = ["Normalised", "kind_of", "normalise"]
