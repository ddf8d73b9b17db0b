from typing import Any

import logfire
from openai import OpenAI
from weather import ask_openai, fail_openai, finish


def run(**settings: Any) -> None:
    """The program; only what Logfire is told differs."""
    logfire.configure(console=False, **settings)
    client = OpenAI(max_retries=0)
    logfire.instrument_openai(client)
    with logfire.span("weather of {city}", city="Paris"):
        ask_openai(client)
    fail_openai(client)
    logfire.force_flush()
    finish()


if __name__ == "__main__":
    run(send_to_logfire=False, service_name="program")
