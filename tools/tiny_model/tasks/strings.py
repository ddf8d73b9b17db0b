"""Copying, spelling, ordering and counting of letters and words."""

from random import Random

from tools.tiny_model.tasks.turn import LETTERS, Turn, letters, spaced, turn
from tools.tiny_model.words import WORDS


def some_words(random: Random, low: int, high: int) -> list[str]:
    """Distinct words of the small vocabulary, now and then a made-up one among them."""
    words = random.sample(WORDS, random.randint(low, high))
    if random.random() < 0.15:
        words[random.randrange(len(words))] = letters(random, 3, 5)
    return words


def copy_letters(random: Random) -> Turn:
    text = letters(random, 2, 8)
    forms = (f"Repeat: {text}", f"Say {text}", f"Copy this word: {text}", f"Copy: {text}", f"Write {text}.")
    return turn(random.choice(forms), text, spaced(text) if len(text) < 5 else "copy", "I copy the letters.")


def copy_sequence(random: Random) -> Turn:
    """Many letters, digits or words: not asked of the trained model, but the quickest way to learn to copy."""
    items = random.choice((LETTERS, "0123456789", [f" {word}" for word in WORDS]))
    text = "".join(random.choice(items) for _ in range(random.randint(5, 14))).strip()
    return turn(f"{random.choice(('Repeat', 'Copy', 'Say'))}: {text}", text, "copy")


def copy_words(random: Random) -> Turn:
    text = " ".join(some_words(random, 1, 5))
    forms = (f"Repeat: {text}", f"Say: {text}", f"Copy: {text}", f'Say "{text}".')
    return turn(random.choice(forms), text, "copy", "I repeat the words.")


def copy_digits(random: Random) -> Turn:
    text = "".join(random.choice("0123456789") for _ in range(random.randint(2, 7)))
    return turn(random.choice((f"Repeat: {text}", f"Copy: {text}", f"Say {text}")), text, "copy", "I copy the digits.")


def spell(random: Random) -> Turn:
    word = random.choice(WORDS) if random.random() < 0.7 else letters(random, 2, 5)
    return turn(
        random.choice((f"Spell {word}.", f"Spell: {word}")),
        spaced(word),
        f"{len(word)} letters",
        f"It has {len(word)} letters.",
    )


def reverse_letters(random: Random) -> Turn:
    text = letters(random, 2, 5)
    return turn(
        random.choice((f"Reverse: {text}", f"Write {text} backwards.")),
        text[::-1],
        spaced(text),
        f"Letters: {spaced(text)}.",
    )


def reverse_words(random: Random) -> Turn:
    words = some_words(random, 2, 4)
    answer = " ".join(reversed(words))
    return turn(f"Reverse the words: {' '.join(words)}", answer, f"last {words[-1]}", f"The last word is {words[-1]}.")


def sort_words(random: Random) -> Turn:
    words = random.sample(WORDS, random.randint(2, 3))
    initials = " ".join(word[0] for word in words)
    return turn(f"Sort: {' '.join(words)}", " ".join(sorted(words)), initials, f"First letters: {initials}.")


def uppercase(random: Random) -> Turn:
    word = random.choice(WORDS) if random.random() < 0.6 else letters(random, 2, 5)
    forms = (f"Uppercase: {word}", f"Write {word} in uppercase.")
    return turn(random.choice(forms), word.upper(), spaced(word), f"Letters: {spaced(word)}.")


def capitalise(random: Random) -> Turn:
    word = letters(random, 2, 6)
    return turn(
        f"Capitalize: {word}",
        word[0].upper() + word[1:],
        f"{word[0]} {word[0].upper()}",
        f"The first letter is {word[0]}.",
    )


def first_word(random: Random) -> Turn:
    words = some_words(random, 2, 5)
    return turn(f"First word of: {' '.join(words)}", words[0], "first", f"The first word is {words[0]}.")


def last_word(random: Random) -> Turn:
    words = some_words(random, 2, 5)
    return turn(f"Last word of: {' '.join(words)}", words[-1], "last", f"The last word is {words[-1]}.")


def count_words(random: Random) -> Turn:
    words = random.sample(WORDS, random.randint(1, 6))
    forms = (f"How many words: {' '.join(words)}", f"Count the words: {' '.join(words)}")
    return turn(random.choice(forms), str(len(words)), f"{len(words)} words", f"There are {len(words)} words.")


def contains(random: Random) -> Turn:
    words = random.sample(WORDS, random.randint(2, 5))
    inside = random.random() < 0.5
    word = random.choice(words) if inside else random.choice([other for other in WORDS if other not in words])
    thoughts = ("yes", f"{word} is in the list.") if inside else ("no", f"{word} is not in the list.")
    return turn(f"Is {word} in: {' '.join(words)}?", "Yes." if inside else "No.", *thoughts)


def join_words(random: Random) -> Turn:
    words = some_words(random, 2, 4)
    sign = random.choice(",-/")
    joiner = ", " if sign == "," else sign
    name = {",": "commas", "-": "dashes", "/": "slashes"}[sign]
    return turn(
        f"Join with {name}: {' '.join(words)}", joiner.join(words), name, f"I join {len(words)} words with {name}."
    )
