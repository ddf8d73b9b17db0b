"""What programs with the Tinker client share: the client against the server of the test, data, and the report."""

import json
import os
import random
import warnings
from typing import Any

import tinker
from tinker import types

warnings.simplefilter("ignore", FutureWarning)
SERVER, KEY = os.environ["WANDB_BASE_URL"], "tml-" + os.environ["WANDB_API_KEY"]
BASE = "heddle-tiny"
VOCABULARY = 500


def service(project: str | None = None) -> tinker.ServiceClient:
    """The client, in the project of the test."""
    return tinker.ServiceClient(
        base_url=SERVER, api_key=KEY, project_id=project or os.environ["SCENARIO_PROJECT"], display_name="a test"
    )


def rest() -> tinker.RestClient:
    """The client without a session."""
    return tinker.RestClient(base_url=SERVER, api_key=KEY)


def draw_tokens(seed: int, count: int) -> list[int]:
    """Tokens that mean nothing."""
    source = random.Random(seed)
    return [source.randrange(VOCABULARY) for _ in range(count)]


def supervised(seed: int, length: int = 12) -> types.Datum:
    """Tokens to learn by heart."""
    ids = draw_tokens(seed, length + 1)
    return types.Datum(
        model_input=types.ModelInput.from_ints(ids[:-1]),
        loss_fn_inputs={"target_tokens": ids[1:], "weights": [0.0] * 3 + [1.0] * (length - 3)},
    )


def report(**values: Any) -> None:
    """Tell the test."""
    print("RESULT " + json.dumps(values))
