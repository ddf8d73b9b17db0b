import json
import os

from braintrust.otel import BraintrustSpanProcessor
from openai import OpenAI
from opentelemetry.sdk.trace import TracerProvider
from weather import MISSING, MODEL, QUESTION, SYSTEM, URL, USER, WEATHER, finish, get_weather, refused

provider = TracerProvider()
provider.add_span_processor(BraintrustSpanProcessor(api_key=os.environ["OPENAI_API_KEY"], api_url=URL))
tracer = provider.get_tracer("program")
client = OpenAI(max_retries=0)


def ask(messages: list, **options) -> object:
    """As its documentation sets the attributes of a request."""
    with tracer.start_as_current_span("ask") as span:
        model = options.get("model", MODEL)
        span.set_attribute("braintrust.span_attributes", json.dumps({"name": "Chat Completion", "type": "llm"}))
        span.set_attribute("braintrust.input_json", json.dumps(messages))
        span.set_attribute("braintrust.metadata", json.dumps({"model": model, "user_id": USER}))
        answer = client.chat.completions.create(**{"model": model, "messages": messages, **options})
        usage = answer.usage
        counts = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "prompt_cached_tokens": usage.prompt_tokens_details.cached_tokens,
            "completion_reasoning_tokens": usage.completion_tokens_details.reasoning_tokens,
        }
        span.set_attribute("braintrust.metrics", json.dumps(counts))
        span.set_attribute("braintrust.output_json", json.dumps([one.model_dump() for one in answer.choices]))
        return answer.choices[0].message


def run_tool(call) -> str:
    with tracer.start_as_current_span("tool") as span:
        span.set_attribute("braintrust.span_attributes", json.dumps({"name": call.function.name, "type": "tool"}))
        span.set_attribute("braintrust.metadata", json.dumps({"user_id": USER}))
        span.set_attribute("braintrust.input", call.function.arguments)
        result = get_weather(**json.loads(call.function.arguments))
        span.set_attribute("braintrust.output", result)
        return result


with tracer.start_as_current_span("weather"):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
    first = ask(messages, tools=[WEATHER])
    (call,) = first.tool_calls
    messages += [
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": run_tool(call)},
    ]
    ask(messages, tools=[WEATHER])
refused(lambda: ask(messages[:2], model=MISSING))
finish(provider)
