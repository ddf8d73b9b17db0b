import json

import outlines
from openai import OpenAI
from pydantic import BaseModel
from weather import MISSING, OBJECT, QUESTION, SERVED, refused, report, status_of, streamed


class Weather(BaseModel):
    city: str
    degrees: int


client = OpenAI(max_retries=0)
model = outlines.from_openai(client, SERVED)
report(
    answer=lambda: model(QUESTION),
    stream=lambda: streamed(model.stream(QUESTION)),
    structure=lambda: json.loads(model(OBJECT, Weather)),
    by_vllm=lambda: json.loads(outlines.from_vllm(client, SERVED)(OBJECT, Weather)),
    error=lambda: status_of(refused(lambda: outlines.from_openai(client, MISSING)(QUESTION))),
)
