"""The shipped model `heddle-tiny`: its folder (`model/`, Hugging Face layout) and the recipe that made it."""

from pathlib import Path

MODEL_NAME = "heddle-tiny"
MODEL_FOLDER = Path(__file__).parent / "model"
