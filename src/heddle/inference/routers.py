"""The routers of inference."""

from heddle.inference import catalogue, chat, completions, images, information, runtimes
from heddle.inference import usage as inference_usage

ROUTERS = tuple(
    module.router for module in (chat, catalogue, inference_usage, completions, images, runtimes, information)
)
