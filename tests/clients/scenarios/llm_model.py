"""A model of the SDK that is nothing but settings: the server completes for it."""

import weave
from common import PROJECT, report, start
from weave.flow.llm_structured_model import LLMStructuredCompletionModel

client = start()
model = LLMStructuredCompletionModel(
    name="asker",
    llm_model_id="heddle-tiny",
    default_params={
        "messages_template": [{"role": "system", "content": "You know {topic}."}],
        "temperature": 0,
        "max_tokens": 5,
        "response_format": "text",
    },
)
plain_answer = model.predict("hello", topic="looms")

prompt = weave.publish(weave.MessagesPrompt([{"role": "system", "content": "You love {topic}."}]), name="lover")
stored = LLMStructuredCompletionModel(
    name="lover-of",
    llm_model_id="heddle-tiny",
    default_params={"prompt": prompt.uri(), "temperature": 0, "max_tokens": 400, "response_format": "json_object"},
)
json_answer = stored.predict("Give JSON.", topic="wool")

try:
    LLMStructuredCompletionModel(llm_model_id="nobody", default_params={"response_format": "text"}).predict("hello")
    failure = ""
except RuntimeError as error:
    failure = str(error)
client.flush()
report(project=PROJECT, plain=plain_answer, json=json_answer, failure=failure)
