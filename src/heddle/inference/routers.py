"""The routers of inference."""

from heddle.inference.api import chat, completions, images, limits, provider_keys, responses, runtimes, tokenization
from heddle.inference.api import models as catalogue
from heddle.inference.api import provider_catalogs as information
from heddle.inference.api import usage as inference_usage

ROUTERS = tuple(
    module.router
    for module in (
        *(chat, responses, tokenization, catalogue),
        *(inference_usage, limits, completions, images, runtimes, provider_keys, information),
    )
)
