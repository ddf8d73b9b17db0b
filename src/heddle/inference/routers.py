"""The routers of inference."""

from heddle.inference.api import chat, completions, images, runtimes
from heddle.inference.api import models as catalogue
from heddle.inference.api import provider_catalogs as information
from heddle.inference.api import usage as inference_usage

ROUTERS = tuple(
    module.router for module in (chat, catalogue, inference_usage, completions, images, runtimes, information)
)
