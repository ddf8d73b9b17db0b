"""The words of the synthetic conversations: few enough to become single tokens, varied enough to be copied."""


def listed(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


NAMES = listed(
    "Anna Ben Carl Dora Emma Finn Greta Hugo Ida Jack Kate Leo Mary Nora Oscar Paul Rosa Sam Tom Vera Will Zoe"
)
CITIES = listed("Berlin Cairo Delhi Lima London Madrid Milan Oslo Paris Prague Rome Seoul Sydney Tokyo Vienna Zurich")
COLOURS = listed("red blue green black white yellow brown grey pink")
ANIMALS = listed("cat dog cow horse fish bird fox bear wolf sheep")
THINGS = listed(
    "book lamp king star milk rain road ship gold fire door tree moon sun stone cup key hat bed box car bread "
    "apple lemon river garden house table chair paper letter music window bridge castle winter summer"
)
WORDS = (*COLOURS, *ANIMALS, *THINGS)
KEYS = listed(
    "name age city color size count price id title ok active tags items score total unit level code note text "
    "type status value user email date first last left right x y width height answer result data list"
)
ADJECTIVES = listed("big small old new hot cold good bad fast slow happy sad high low open closed")

OPPOSITES = {
    "big": "small", "old": "new", "hot": "cold", "good": "bad", "fast": "slow", "happy": "sad", "high": "low",
    "open": "closed", "black": "white", "left": "right", "first": "last", "day": "night", "yes": "no", "up": "down",
    "summer": "winter", "king": "queen",
}  # fmt: skip
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Japan": "Tokyo", "Egypt": "Cairo", "Germany": "Berlin",
    "Austria": "Vienna", "Norway": "Oslo", "England": "London", "Peru": "Lima",
}  # fmt: skip
LOOKS = {
    "the sky": "blue", "grass": "green", "snow": "white", "milk": "white", "a lemon": "yellow", "the sun": "yellow",
    "blood": "red", "coal": "black",
}  # fmt: skip
LEGS = {
    "a cat": "4", "a dog": "4", "a cow": "4", "a horse": "4", "a bird": "2", "a fish": "0", "a spider": "8",
    "a sheep": "4",
}  # fmt: skip
SOUNDS = {"cat": "meow", "dog": "woof", "cow": "moo", "sheep": "baa"}
DAYS = listed("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
NUMBER_WORDS = listed("zero one two three four five six seven eight nine ten")

LISTS = (WORDS, KEYS, ADJECTIVES, NAMES, CITIES, CAPITALS, DAYS, NUMBER_WORDS, OPPOSITES, OPPOSITES.values(), ("OK",))
LEXICON = sorted({word for words in LISTS for word in words if len(word) > 1})
"""Words that are tokens, also when they are rare in a sample."""
