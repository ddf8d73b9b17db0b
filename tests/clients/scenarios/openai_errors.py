"""The newest OpenAI SDK: failures as exceptions, retries, cancelled streams."""

import json
import os
from typing import Any

import openai
from openai import OpenAI

FIELDS: dict[str, Any] = {
    "model": "heddle-tiny",
    "messages": [{"role": "user", "content": "Say something."}],
    "max_tokens": 4,
    "temperature": 0,
}
ENDLESS: dict[str, Any] = {**FIELDS, "max_tokens": 1500, "stream": True, "extra_body": {"ignore_eos": True}}


def failure(client: OpenAI, **fields: Any) -> dict[str, Any]:
    """The exception that a request raises."""
    try:
        client.chat.completions.create(**{**FIELDS, **fields})
    except openai.APIStatusError as error:
        return {
            "class": type(error).__name__,
            "status": error.status_code,
            "param": error.param,
            "code": error.code,
            "type": error.type,
            "message": error.message,
            "retry_after": error.response.headers.get("retry-after"),
        }
    return {"class": None}


def failures(client: OpenAI) -> dict[str, Any]:
    """One failure of each kind."""
    stranger = OpenAI(max_retries=0, api_key="x", default_headers={"Authorization": ""})
    return {
        "bad_request": failure(client, top_p=2),
        "unprocessable": failure(client, temperature="hot"),
        "not_found": failure(client, model="zzz"),
        "unauthenticated": failure(stranger),
        "streamed": failure(client, model="zzz", stream=True),
        "too_long": failure(client, max_tokens=10_000_000),
    }


def limited() -> dict[str, Any]:
    """With one completion at a time per project: 429 without retries, patience with them once the first has gone."""
    client = OpenAI(max_retries=0, project=os.environ["SCENARIO_PROJECT"])
    stream = client.chat.completions.create(**ENDLESS)
    next(iter(stream))
    refused = failure(client)
    patient = client.with_options(max_retries=8)
    stream.close()
    raw = patient.chat.completions.with_raw_response.create(**FIELDS)
    return {"refused": refused, "patient": raw.status_code}


def retried() -> dict[str, Any]:
    """A refused request is sent again by the SDK itself until there is room."""
    client = OpenAI(max_retries=8, project=os.environ["SCENARIO_PROJECT"])
    stream = client.chat.completions.create(**ENDLESS)
    next(iter(stream))
    attempts: list[int] = []

    def watch(response: Any) -> None:
        attempts.append(response.status_code)
        if len(attempts) == 1:
            stream.close()

    watched = client.with_options(
        http_client=openai.DefaultHttpxClient(event_hooks={"response": [watch]}),
    )
    raw = watched.chat.completions.with_raw_response.create(**FIELDS)
    return {"status": raw.status_code, "attempts": attempts, "retries": raw.retries_taken}


def cancelled(client: OpenAI) -> dict[str, Any]:
    """Streams that are closed early."""
    for _ in range(6):
        with client.chat.completions.create(**ENDLESS) as stream:
            for _, _chunk in zip(range(3), stream, strict=False):
                pass
    return {"closed": 6}


def main() -> None:
    """Run the part that the variable names and report what the SDK saw."""
    client = OpenAI(max_retries=0)
    if os.environ["SCENARIO_PART"] == "limited":
        seen = {"limited": limited(), "retried": retried()}
    else:
        seen = {"failures": failures(client), "cancelled": cancelled(client)}
    print("RESULT " + json.dumps(seen), flush=True)


main()
