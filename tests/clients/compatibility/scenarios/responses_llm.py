import json
import os
import tempfile
from pathlib import Path

from weather import ASKED, MISSING, OBJECT, QUESTION, SCHEMA, SERVED, get_weather, refused, report, status_of

os.environ["LLM_USER_PATH"] = folder = tempfile.mkdtemp()
NAMED = """
- model_id: {name}
  model_name: {name}
  api_base: {url}
  responses: true
  supports_tools: true
  supports_schema: true
"""
models = (NAMED.format(name=name, url=os.environ["OPENAI_BASE_URL"]) for name in (SERVED, MISSING))
Path(folder, "extra-openai-models.yaml").write_text("".join(models))

import llm

model, key = llm.get_model(SERVED), os.environ["OPENAI_API_KEY"]
pieces = list(model.prompt(QUESTION, key=key))
report(
    answer=model.prompt(QUESTION, key=key, stream=False).text(),
    stream={"text": "".join(pieces), "in_pieces": len(pieces) > 1},
    tools={
        "answer": model.chain(QUESTION, key=key, tools=[get_weather]).text(),
        "arguments": {"city": ASKED[0]},
    },
    structure=json.loads(model.prompt(OBJECT, key=key, schema=SCHEMA).text()),
    error=status_of(refused(lambda: llm.get_model(MISSING).prompt(QUESTION, key=key).text())),
)
