"""The routers of inference."""

from heddle.inference.api import (
    chat,
    completions,
    conversations,
    embeddings,
    images,
    messages,
    provider_keys,
    responses,
    runtimes,
    text_completions,
    tokenization,
)
from heddle.inference.api import models as catalogue
from heddle.inference.api import provider_catalogs as information
from heddle.inference.api import usage as inference_usage

ROUTERS = tuple(
    module.router
    for module in (
        *(chat, text_completions, messages, responses, conversations, embeddings, tokenization, catalogue),
        *(inference_usage, completions, images, runtimes, provider_keys, information),
    )
)
