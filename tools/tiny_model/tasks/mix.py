"""The mixture of tasks that the model is trained on, and how single questions become chats."""

from collections.abc import Callable
from random import Random

from tools.tiny_model.chat import Chat, Message
from tools.tiny_model.tasks import jsons, numbers, reading, strings, talk, toolbox
from tools.tiny_model.tasks.turn import EFFORTS, Turn

TURNS: dict[str, tuple[Callable[[Random], Turn], float]] = {
    "addition": (numbers.add, 10),
    "subtraction": (numbers.subtract, 8),
    "multiplication table": (numbers.multiply, 2),
    "bigger or smaller": (numbers.bigger, 4),
    "is it bigger": (numbers.is_bigger, 2.5),
    "even or odd": (numbers.parity, 0.8),
    "next number": (numbers.neighbour, 1),
    "number word": (numbers.number_word, 0.5),
    "count up": (numbers.count_up, 1),
    "sort numbers": (numbers.sort_numbers, 2),
    "word problem": (numbers.story, 1.5),
    "copy letters": (strings.copy_letters, 4),
    "copy words": (strings.copy_words, 2),
    "copy digits": (strings.copy_digits, 1),
    "spell": (strings.spell, 1.2),
    "reverse letters": (strings.reverse_letters, 2),
    "reverse words": (strings.reverse_words, 1),
    "sort words": (strings.sort_words, 1.5),
    "uppercase": (strings.uppercase, 1.5),
    "capitalize": (strings.capitalise, 0.7),
    "first word": (strings.first_word, 0.8),
    "last word": (strings.last_word, 0.8),
    "count words": (strings.count_words, 1),
    "word in list": (strings.contains, 1.2),
    "join words": (strings.join_words, 0.7),
    "JSON from pairs": (jsons.pairs, 4),
    "JSON array": (jsons.array, 2),
    "nested JSON": (jsons.nested, 1.5),
    "read JSON": (jsons.read_value, 2),
    "small talk": (talk.small_talk, 1),
    "greeting": (talk.greet, 0.8),
    "facts": (talk.fact, 1.2),
}
FREE: dict[str, tuple[Callable[[Random], Turn], float]] = {
    "free JSON": (jsons.invent, 4),
    "yes, no or maybe": (talk.choice, 1.5),
    "choose one": (talk.pick, 0.5),
}
CHATS: dict[str, tuple[Callable[[Random], Chat], float]] = {
    "system": (talk.follow_system, 2),
    "memory": (talk.remember, 2),
    "tool call": (toolbox.single_call, 5),
    "two tool calls": (toolbox.double_call, 0.7),
    "tool answer": (toolbox.tool_answer, 2),
    "no tool": (toolbox.no_tool, 1),
    "documents": (reading.documents, 3),
}
TASKS = (*TURNS, *FREE, *CHATS)
CHECKED = (*TURNS, *CHATS)
"""Tasks with one right answer; those of FREE have many."""
THINKING_SHARE = 0.2
EASY = (
    "copy letters",
    "copy words",
    "copy digits",
    "spell",
    "first word",
    "last word",
    "JSON from pairs",
    "JSON array",
)


def sample(random: Random) -> Chat:
    """One conversation of the mixture."""
    weights = [weight for _, weight in (TURNS | FREE | CHATS).values()]
    task = random.choices(TASKS, weights)[0]
    effort = random.choice(EFFORTS) if task not in CHATS and random.random() < THINKING_SHARE else None
    earlier = 0 if task in CHATS else random.choices((0, 1, 2, 4, 8), (70, 18, 8, 3, 1))[0]
    return make(random, task, effort, earlier, with_system=random.random() < 0.25)


def easy_sample(random: Random) -> Chat:
    """One short conversation for the first steps, in which a model learns to copy: most are long random sequences."""
    if random.random() < 0.5:
        return make(random, random.choice((*EASY, "addition", "bigger or smaller")))
    return Chat("copy", exchange(strings.copy_sequence(random), None))


def make(random: Random, task: str, effort: str | None = None, earlier: int = 0, with_system: bool = False) -> Chat:
    """A chat of one task; single questions may follow `earlier` other ones and think at an effort."""
    if task in CHATS:
        return CHATS[task][0](random)
    tasks = random.choices(list(TURNS), [weight for _, weight in TURNS.values()], k=earlier) + [task]
    messages: list[Message] = []
    if with_system:
        messages.append(talk.said("system", random.choice(talk.SYSTEMS)))
    for name in tasks:
        messages += exchange((TURNS | FREE)[name][0](random), effort)
    return Chat(task, messages, effort=effort)


def exchange(turn: Turn, effort: str | None) -> list[Message]:
    """The question and the answer, thought about first where an effort is given."""
    answer = talk.said("assistant", turn.answer)
    if effort is not None:
        answer["reasoning"] = turn.thoughts[EFFORTS.index(effort)]
    return [talk.said("user", turn.question), answer]
