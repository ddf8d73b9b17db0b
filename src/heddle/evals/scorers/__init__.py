"""Scorers that run in the server: built-in ones, and models as judges."""

from heddle.evals.scorers.base import Ask, Scorer, number_of
from heddle.evals.scorers.builtin import BuiltinScorer, builtin
from heddle.evals.scorers.kinds import KINDS

__all__ = ["KINDS", "Ask", "BuiltinScorer", "Scorer", "builtin", "number_of"]
