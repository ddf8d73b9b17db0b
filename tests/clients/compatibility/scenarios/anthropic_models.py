from anthropic import Anthropic
from pydantic import BaseModel
from weather import ASKED, MISSING, OBJECT, QUESTION, SERVED, ask_anthropic, refused, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


client = Anthropic(max_retries=0)
asked = [{"role": "user", "content": QUESTION}]


def ask(model: str) -> str:
    return client.messages.create(model=model, max_tokens=1000, messages=asked).content[0].text


def stream() -> list[str]:
    with client.messages.stream(model=SERVED, max_tokens=1000, messages=asked) as events:
        return list(events.text_stream)


def parse() -> Weather:
    wanted = [{"role": "user", "content": OBJECT}]
    return client.messages.parse(model=SERVED, max_tokens=1000, messages=wanted, output_format=Weather).parsed_output


report(
    answer=lambda: ask(SERVED),
    stream=lambda: streamed(stream()),
    tools=lambda: {"answer": ask_anthropic(client, SERVED), "arguments": {"city": ASKED[0]}},
    structure=lambda: parse().model_dump(),
    counted=lambda: client.messages.count_tokens(model=SERVED, messages=asked).input_tokens > 0,
    error=lambda: status_of(refused(lambda: ask(MISSING))),
)
