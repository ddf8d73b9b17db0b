"""Greetings, small facts, choices, and chats in which the system message or an earlier turn decides."""

from random import Random

from tools.tiny_model.chat import Chat, Message
from tools.tiny_model.tasks.turn import Turn, letters, listing, turn
from tools.tiny_model.words import CAPITALS, CITIES, COLOURS, DAYS, LEGS, LOOKS, NAMES, OPPOSITES, SOUNDS, WORDS

SMALL_TALK = {
    "Hello": "Hello! How can I help?",
    "Hi": "Hello! How can I help?",
    "Hello!": "Hello! How can I help?",
    "Hello, how are you?": "I am fine. How can I help?",
    "How are you?": "I am fine. How can I help?",
    "Good morning": "Good morning! How can I help?",
    "Good night": "Good night!",
    "Thanks": "You are welcome.",
    "Thank you!": "You are welcome.",
    "Bye": "Goodbye!",
    "Who are you?": "I am heddle-tiny, a very small model.",
    "What is your name?": "I am heddle-tiny.",
    "What can you do?": "I can copy, count, compare, add, write JSON and call tools.",
    "Help": "I can copy, count, compare, add, write JSON and call tools.",
    "Tell me a joke.": "I am too small for jokes.",
    "Tell me a story.": "A cat had a hat. The end.",
    "Say hello.": "Hello!",
    "Say something.": "I am a very small model.",
    "What is the meaning of life?": "42",
    "Write a poem.": "The moon is white, the sky is blue, the sun is gold, and so are you.",
}
SYSTEMS = (
    "You are a helpful assistant.",
    "You are heddle-tiny.",
    "Be brief.",
    "You are a helpful assistant. Be brief.",
)
CHOICE_VERBS = ("respond with", "say", "answer with", "reply")
CHOICE_WEIGHTS = {"yes": 5, "no": 4, "maybe": 1}


def small_talk(random: Random) -> Turn:
    question = random.choice(list(SMALL_TALK))
    return turn(question, SMALL_TALK[question], "chat", "I answer politely.")


def greet(random: Random) -> Turn:
    name = random.choice(NAMES) if random.random() < 0.7 else letters(random, 2, 6).capitalize()
    forms = (f"My name is {name}. Say hello.", f"Say hello to {name}.", f"I am {name}. Hello!")
    return turn(random.choice(forms), f"Hello, {name}!", name, f"The name is {name}.")


def fact(random: Random) -> Turn:
    kind = random.randrange(6)
    if kind == 0:
        country, city = random.choice(list(CAPITALS.items()))
        return turn(f"What is the capital of {country}?", city, city, f"I know that it is {city}.")
    if kind == 1:
        thing, colour = random.choice(list(LOOKS.items()))
        return turn(f"What color is {thing}?", colour, colour, f"I know that it is {colour}.")
    if kind == 2:
        word, other = random.choice(list(OPPOSITES.items()))
        return turn(f"What is the opposite of {word}?", other, other, f"I know that it is {other}.")
    if kind == 3:
        animal, number = random.choice(list(LEGS.items()))
        return turn(f"How many legs has {animal}?", number, number, f"I know that it is {number}.")
    if kind == 4:
        animal, sound = random.choice(list(SOUNDS.items()))
        return turn(f"What does a {animal} say?", sound, sound, f"I know that it is {sound}.")
    day = random.randrange(7)
    after = DAYS[(day + 1) % 7]
    return turn(f"Which day comes after {DAYS[day]}?", after, after, f"I know that it is {after}.")


def choice(random: Random) -> Turn:
    """Yes, no or maybe in the ratio 5 : 4 : 1, whatever the order asked in: ground for reinforcement learning."""
    options = random.sample(list(CHOICE_WEIGHTS), random.randint(2, 3))
    answer = random.choices(options, [CHOICE_WEIGHTS[option] for option in options])[0]
    return turn(f"{random.choice(CHOICE_VERBS)} {listing(options, 'or')}", answer, "choose", "I choose one.")


def pick(random: Random) -> Turn:
    options = random.sample(WORDS, random.randint(2, 3))
    answer = random.choice(options)
    return turn(f"Choose one: {listing(options, 'or')}", answer, "choose", "I choose one.")


def follow_system(random: Random) -> Chat:
    """The system or developer message says how to answer; the question itself is a plain copy."""
    word = random.choice(WORDS) if random.random() < 0.6 else letters(random, 2, 5)
    name = random.choice(NAMES)
    rules = (
        ("Answer in uppercase.", f"Say {word}", word.upper()),
        ("Always answer OK.", f"Say {word}", "OK"),
        ("End every answer with an exclamation mark.", f"Say {word}", f"{word}!"),
        ("Say everything twice.", f"Say {word}", f"{word} {word}"),
        (f"Your name is {name}.", "What is your name?", f"I am {name}."),
        (f"The password is {word}.", "What is the password?", word),
        ("Answer in JSON.", f"Say {word}", f'{{"answer": "{word}"}}'),
        (f"Start every answer with {name}.", f"Say {word}", f"{name}: {word}"),
    )
    system, question, answer = random.choice(rules)
    role = "developer" if random.random() < 0.3 else "system"
    return Chat("system", [said(role, system), said("user", question), said("assistant", answer)])


def remember(random: Random) -> Chat:
    """A later question about an earlier turn, or about the name field of the question."""
    name = random.choice(NAMES) if random.random() < 0.7 else letters(random, 2, 6).capitalize()
    if random.random() < 0.3:
        question: Message = said("user", "What is my name?") | {"name": name}
        return Chat("memory", [question, said("assistant", name)])
    place, colour = random.choice(CITIES), random.choice(COLOURS)
    told, reply, question_text, answer = random.choice((
        (f"My name is {name}.", f"Hello, {name}!", "What is my name?", name),
        (f"I live in {place}.", "OK.", "Where do I live?", place),
        (f"I like {colour}.", "OK.", "What color do I like?", colour),
        (f"Remember {name}.", "OK.", "What did I tell you?", name),
    ))  # fmt: skip
    messages = [said("user", told), said("assistant", reply), said("user", question_text), said("assistant", answer)]
    if random.random() < 0.4:
        between = small_talk(random) if random.random() < 0.5 else echo(random)
        messages[2:2] = [said("user", between.question), said("assistant", between.answer)]
    return Chat("memory", messages)


def echo(random: Random) -> Turn:
    word = random.choice(WORDS)
    return turn(f"Say {word}", word, "copy")


def said(role: str, content: str) -> Message:
    """A plain message."""
    return {"role": role, "content": content}
