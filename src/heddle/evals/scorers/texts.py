"""How near one text is to another, without a model; all of it is exact and needs time by length, not by content."""

import re
from collections import Counter
from collections.abc import Sequence

_WORD = re.compile(r"\w+")


def levenshtein(one: str, other: str) -> int:
    """The fewest insertions, deletions and substitutions of characters that make one text the other.

    Myers' bit-parallel algorithm in Hyyrö's form (G. Myers, J. ACM 46(3), 1999; H. Hyyrö, 2003).
    """
    if not one or not other:
        return len(one) or len(other)
    places: dict[str, int] = {}
    for index, character in enumerate(one):
        places[character] = places.get(character, 0) | 1 << index
    ones, last, distance = (1 << len(one)) - 1, 1 << len(one) - 1, len(one)
    up, down = ones, 0
    for character in other:
        match = places.get(character, 0)
        diagonal = (((match & up) + up) ^ up) | match | down
        right_up = down | ~(diagonal | up) & ones
        right_down = up & diagonal
        distance += bool(right_up & last) - bool(right_down & last)
        right_up = right_up << 1 | 1
        up = (right_down << 1 | ~(diagonal | right_up)) & ones
        down = right_up & diagonal & ones
    return distance


def words(text: str) -> list[str]:
    """The words of a text, without regard to case."""
    return _WORD.findall(text.casefold())


def token_f1(said: Sequence[str], wanted: Sequence[str]) -> float:
    """The harmonic mean of precision and recall of words, each counted as often as it occurs.

    The measure of SQuAD (Rajpurkar et al., arXiv:1606.05250, section 6.1).
    """
    shared = (Counter(said) & Counter(wanted)).total()
    return _f1(shared, len(said), len(wanted))


def rouge_l(said: Sequence[str], wanted: Sequence[str]) -> float:
    """ROUGE-L with equal weights: the F-measure of the longest common subsequence of words (C.-Y. Lin, 2004)."""
    return _f1(common_subsequence(said, wanted), len(said), len(wanted))


def common_subsequence(one: Sequence[str], other: Sequence[str]) -> int:
    """The length of the longest common subsequence (bit-parallel: H. Hyyrö, AWOCA 2004)."""
    places: dict[str, int] = {}
    for index, word in enumerate(one):
        places[word] = places.get(word, 0) | 1 << index
    ones = row = (1 << len(one)) - 1
    for word in other:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & ones
    return len(one) - row.bit_count()


def _f1(shared: int, said: int, wanted: int) -> float:
    if not said and not wanted:
        return 1.0
    return 2 * shared / (said + wanted)
