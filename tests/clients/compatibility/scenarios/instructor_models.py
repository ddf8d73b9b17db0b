import instructor
from openai import OpenAI
from pydantic import BaseModel
from weather import MISSING, OBJECT, SERVED, refused, report, status_of


class Weather(BaseModel):
    city: str
    degrees: int


asked = [{"role": "user", "content": OBJECT}]


def ask(mode: instructor.Mode, model: str = SERVED) -> Weather:
    client = instructor.from_openai(OpenAI(max_retries=0), mode=mode)
    return client.chat.completions.create(model=model, messages=asked, response_model=Weather, max_retries=0)


report(
    structure=lambda: ask(instructor.Mode.JSON_SCHEMA).model_dump(),
    by_tool=lambda: ask(instructor.Mode.TOOLS).model_dump(),
    error=lambda: status_of(refused(lambda: ask(instructor.Mode.JSON_SCHEMA, MISSING))),
)
