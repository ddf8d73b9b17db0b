import json

import litellm
from weather import ASKED, MISSING, OBJECT, QUESTION, SCHEMA, SERVED, ask_litellm, refused, report, status_of, streamed

asked = [{"role": "user", "content": QUESTION}]
model = f"openai/{SERVED}"
wanted = {"type": "json_schema", "json_schema": {"name": "weather", "strict": True, "schema": SCHEMA}}
report(
    answer=lambda: litellm.completion(model=model, messages=asked).choices[0].message.content,
    stream=lambda: streamed(
        piece.choices[0].delta.content for piece in litellm.completion(model=model, messages=asked, stream=True)
    ),
    tools=lambda: {"answer": ask_litellm(litellm.completion, model), "arguments": {"city": ASKED[0]}},
    structure=lambda: json.loads(
        litellm.completion(model=model, messages=[{"role": "user", "content": OBJECT}], response_format=wanted)
        .choices[0]
        .message.content
    ),
    completion=lambda: (
        litellm.text_completion(model=f"text-completion-openai/{SERVED}", prompt=QUESTION).choices[0].text
    ),
    embedding=lambda: len(litellm.embedding(model=model, input=[QUESTION]).data),
    responses=lambda: litellm.responses(model=model, input=QUESTION).output[-1].content[0].text,
    error=lambda: status_of(
        refused(lambda: litellm.completion(model=f"openai/{MISSING}", messages=asked, num_retries=0))
    ),
)
