"""Tools: calls made from a question, answers made from a tool's result, and questions that need no tool."""

import json
from random import Random
from typing import Any, NamedTuple

from tools.tiny_model.chat import Chat, Message
from tools.tiny_model.tasks.strings import copy_letters, copy_words
from tools.tiny_model.tasks.talk import greet, said, small_talk
from tools.tiny_model.tasks.turn import letters
from tools.tiny_model.words import CITIES, KEYS, NAMES, WORDS

SKIES = ("sunny", "cloudy", "rainy", "snowy", "windy")
VERBS = ("get", "set", "find", "send", "make", "open", "close", "read", "check", "add")
Schema = dict[str, Any]


class Use(NamedTuple):
    """A tool, a question that asks for it, its arguments, its result and the answer that uses the result."""

    tool: Schema
    question: str
    arguments: dict[str, Any]
    result: str
    answer: str
    thought: str


def tool(name: str, description: str, properties: dict[str, Schema]) -> Schema:
    """A tool as requests carry it; all properties are required."""
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function: Schema = {"name": name, "description": description, "parameters": parameters}
    if not description:
        del function["description"]
    return {"type": "function", "function": function}


def weather(random: Random, city: str = "") -> Use:
    city, degrees, sky = city or random.choice(CITIES), random.randint(0, 35), random.choice(SKIES)
    schema = tool(
        "get_weather", random.choice(("Get the weather", "Weather of a city", "")), {"city": {"type": "string"}}
    )
    result = {"temperature": degrees, "sky": sky} if random.random() < 0.5 else f"{degrees} degrees, {sky}"
    questions = (f"What is the weather in {city}?", f"How is the weather in {city}?", f"Weather in {city}?")
    answer = f"It is {degrees} degrees and {sky} in {city}."
    return Use(
        schema, random.choice(questions), {"city": city}, plain(result), answer, f"I need the weather in {city}."
    )


def calculator(random: Random) -> Use:
    first, second = random.randint(0, 999), random.randint(0, 999)
    sign, name = random.choice((("+", "add"), ("*", "multiply")))
    schema = tool(name, f"{name.capitalize()} two numbers", {"a": {"type": "integer"}, "b": {"type": "integer"}})
    result = first + second if sign == "+" else first * second
    questions = (f"What is {first} {sign} {second}?", f"Use the tool for {first} {sign} {second}.")
    thought = f"I use {name} for {first} and {second}."
    return Use(
        schema,
        random.choice(questions),
        {"a": first, "b": second},
        str(result),
        f"{first} {sign} {second} = {result}",
        thought,
    )


def search(random: Random) -> Use:
    word, found = random.sample(WORDS, 2)
    schema = tool("search", random.choice(("Search the web", "Search", "")), {"query": {"type": "string"}})
    question = random.choice((f"Search for {word}.", f"Find {word}."))
    return Use(schema, question, {"query": word}, f"{word}: {found}", f"I found: {found}", f"I search for {word}.")


def message(random: Random) -> Use:
    name, word = random.choice(NAMES), random.choice(WORDS)
    schema = tool("send_message", "Send a message", {"to": {"type": "string"}, "text": {"type": "string"}})
    question = random.choice((f'Send "{word}" to {name}.', f"Tell {name}: {word}", f"Send {name} the text {word}."))
    return Use(schema, question, {"to": name, "text": word}, "sent", "OK, sent.", f"I send {word} to {name}.")


def clock(random: Random) -> Use:
    city = random.choice(CITIES)
    time = f"{random.randint(10, 23)}:{random.randint(10, 59)}"
    schema = tool("get_time", random.choice(("Get the time", "")), {"city": {"type": "string"}})
    question = random.choice((f"What time is it in {city}?", f"Time in {city}?"))
    return Use(schema, question, {"city": city}, time, f"It is {time} in {city}.", f"I need the time in {city}.")


def anything(random: Random) -> Use:
    """A tool that nobody saw before: its name and arguments come from its schema and the question."""
    noun = random.choice(WORDS) if random.random() < 0.7 else letters(random, 3, 5)
    name = f"{random.choice(VERBS)}_{noun}" if random.random() < 0.7 else noun
    properties: dict[str, Schema] = {}
    arguments: dict[str, Any] = {}
    for key in random.sample((*KEYS, "a", "b", "n", "q"), random.randint(0, 2) or 1):
        properties[key], arguments[key] = argument(random)
    listed = " and ".join(f"{key} = {plain(value)}" for key, value in arguments.items())
    question = random.choice((f"Call {name} with {listed}.", f"Use {name}: {listed}", f"{name} with {listed}"))
    description = random.choice(("", f"{noun} tool", "A tool"))
    value = random.choice(WORDS) if random.random() < 0.5 else str(random.randint(0, 99))
    return Use(
        tool(name, description, properties), question, arguments, value, f"The result is {value}.", f"I call {name}."
    )


def argument(random: Random) -> tuple[Schema, Any]:
    """The schema of an argument and a value that fits it."""
    kind = random.randrange(5)
    if kind == 0:
        return {"type": random.choice(("integer", "number"))}, random.randint(0, 99)
    if kind == 1:
        return {"type": "boolean"}, random.random() < 0.5
    if kind == 2:
        options = random.sample(WORDS, 2)
        return {"type": "string", "enum": options}, random.choice(options)
    return {"type": "string"}, random.choice(WORDS) if kind == 3 else letters(random, 2, 5)


def plain(value: Any) -> str:
    """A string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


KINDS = (weather, weather, calculator, search, message, clock, anything, anything, anything)


def toolset(random: Random, wanted: Schema) -> list[Schema]:
    """The wanted tool among others, each name once."""
    tools = {wanted["function"]["name"]: wanted}
    for _ in range(random.choice((0, 0, 0, 1, 1, 2))):
        other = random.choice(KINDS)(random).tool
        tools.setdefault(other["function"]["name"], other)
    shuffled = list(tools.values())
    random.shuffle(shuffled)
    return shuffled


def called(random: Random, *uses: Use) -> Message:
    """The assistant's message that calls; arguments as text or as an object, as histories carry them."""
    as_text = random.random() < 0.7
    calls = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {
                "name": use.tool["function"]["name"],
                "arguments": json.dumps(use.arguments) if as_text else use.arguments,
            },
        }
        for index, use in enumerate(uses)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def single_call(random: Random) -> Chat:
    use = random.choice(KINDS)(random)
    messages = [said("user", use.question), called(random, use)]
    effort = random.choice(("low", "medium", "high")) if random.random() < 0.15 else None
    if effort:
        messages[-1]["reasoning"] = use.tool["function"]["name"] if effort == "low" else use.thought
    return Chat("tool call", messages, toolset(random, use.tool), effort=effort)


def double_call(random: Random) -> Chat:
    first, second = random.sample(CITIES, 2)
    uses = weather(random, first), weather(random, second)
    question = random.choice((f"What is the weather in {first} and {second}?", f"Weather in {first} and {second}?"))
    return Chat("two tool calls", [said("user", question), called(random, *uses)], toolset(random, uses[0].tool))


def tool_answer(random: Random) -> Chat:
    """The result is there: the answer uses it."""
    use = random.choice(KINDS)(random)
    name = use.tool["function"]["name"]
    call = called(random, use)
    if random.random() < 0.8:
        result: Message = {"role": "tool", "tool_call_id": "call_0", "content": use.result}
    else:
        call = {"role": "assistant", "content": None, "function_call": call["tool_calls"][0]["function"]}
        result = {"role": "function", "name": name, "content": use.result}
    messages = [said("user", use.question), call, result, said("assistant", use.answer)]
    return Chat("tool answer", messages, toolset(random, use.tool))


def no_tool(random: Random) -> Chat:
    """Tools are offered but the question needs none."""
    asked = random.choice((small_talk, greet, copy_letters, copy_words))(random)
    messages = [said("user", asked.question), said("assistant", asked.answer)]
    return Chat("no tool", messages, toolset(random, random.choice(KINDS)(random).tool))
