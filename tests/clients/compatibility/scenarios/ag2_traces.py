import asyncio
import os
from typing import Any

from ag2 import Agent
from ag2.config import OpenAIConfig
from ag2.middleware import TelemetryMiddleware
from weather import MISSING, MODEL, QUESTION, SYSTEM, finish, get_weather, tracing

provider = tracing()


def forecaster(model: str, **options: Any) -> Agent:
    config = OpenAIConfig(model, base_url=os.environ["OPENAI_BASE_URL"], max_retries=0)
    telemetry = TelemetryMiddleware(tracer_provider=provider, agent_name="forecaster")
    return Agent("forecaster", prompt=SYSTEM, config=config, middleware=[telemetry], **options)


async def main() -> None:
    await forecaster(MODEL, tools=[get_weather]).ask(QUESTION)
    try:
        await forecaster(MISSING).ask(QUESTION)
    except Exception:
        finish(provider)


asyncio.run(main())
