"""Answers that stand in the documents given with the request."""

from random import Random

from tools.tiny_model.chat import Chat
from tools.tiny_model.tasks.talk import said
from tools.tiny_model.tasks.turn import letters
from tools.tiny_model.words import ADJECTIVES, CITIES, COLOURS, NAMES, THINGS


def statement(random: Random, thing: str, name: str) -> tuple[str, str, str]:
    """A sentence, a question about it and the answer."""
    kind = random.randrange(5)
    if kind == 0:
        colour = random.choice(COLOURS)
        return f"The {thing} is {colour}.", f"What color is the {thing}?", colour
    if kind == 1:
        city = random.choice(CITIES)
        return f"{name} lives in {city}.", f"Where does {name} live?", city
    if kind == 2:
        age = str(random.randint(1, 99))
        return f"{name} is {age} years old.", f"How old is {name}?", age
    if kind == 3:
        code = letters(random, 3, 5)
        return f"The code of the {thing} is {code}.", f"What is the code of the {thing}?", code
    word = random.choice(ADJECTIVES)
    return f"The {thing} is {word}.", f"How is the {thing}?", word


def documents(random: Random) -> Chat:
    """One to three documents of one or two sentences; the question is about one sentence, or about a title."""
    count = random.randint(1, 3)
    things, names = random.sample(THINGS, 2 * count), random.sample(NAMES, 2 * count)
    facts = [statement(random, thing, name) for thing, name in zip(things, names, strict=True)]
    found = []
    for index in range(count):
        texts = [facts[2 * index][0]]
        if random.random() < 0.4:
            texts.append(facts[2 * index + 1][0])
        title = random.choice((things[2 * index], names[2 * index], "Facts", "Notes"))
        found.append({"title": title, "text": " ".join(texts)})
    _, question, answer = facts[2 * random.randrange(count)]
    if random.random() < 0.5:
        question = f"According to the document, {question[0].lower()}{question[1:]}"
    return Chat("documents", [said("user", question), said("assistant", answer)], documents=found)
