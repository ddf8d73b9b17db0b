"""Endless training batches: conversations of like length, labels on what the assistant says."""

import itertools
from collections.abc import Iterator
from random import Random
from typing import NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.tiny_model.chat import Chat
from tools.tiny_model.tasks.mix import easy_sample, sample
from tools.tiny_model.tokenizer import END_ID, PAD_ID, START_ID

POOL_BATCHES = 24
LONGEST = 640


class Batch(NamedTuple):
    """Padded token ids (batch, length), True where the token is the assistant's own, and its share in the loss."""

    tokens: Tensor
    own: Tensor
    weight: Tensor


def assistant_id(tokenizer: Tokenizer) -> int:
    """The token that heads the assistant's turns."""
    token: int | None = tokenizer.token_to_id("assistant")
    assert token is not None
    return token


def own_tokens(tokens: list[int], assistant: int) -> list[bool]:
    """True for each token of an assistant's turn, its end mark included, its header not."""
    own, speaking, header_left = [], False, 0
    for index, token in enumerate(tokens):
        if token == START_ID:
            speaking, header_left = tokens[index + 1] == assistant, 3
        own.append(speaking and header_left <= 0)
        header_left -= 1
        speaking = speaking and token != END_ID
    return own


def pack(chats: list[list[int]], assistant: int) -> Batch:
    """Pad on the right to the longest."""
    length = max(len(tokens) for tokens in chats)
    ids = torch.full((len(chats), length), PAD_ID)
    weight = torch.zeros((len(chats), length))
    for row, tokens in enumerate(chats):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weight[row, : len(tokens)] = torch.tensor(weights(own_tokens(tokens, assistant)))
    return Batch(ids, weight > 0, weight)


def weights(own: list[bool]) -> list[float]:
    """1 / sqrt(length) within each of the assistant's turns, so that long answers do not drown short ones."""
    shares: list[float] = []
    for mine, run in itertools.groupby(own):
        count = len(list(run))
        shares += [count**-0.5 if mine else 0.0] * count
    return shares


def encode(tokenizer: Tokenizer, chats: list[Chat]) -> list[list[int]]:
    """Token ids of whole conversations."""
    return [encoding.ids for encoding in tokenizer.encode_batch([chat.text() for chat in chats])]


def batches(tokenizer: Tokenizer, random: Random, batch_tokens: int, easy_tokens: int) -> Iterator[Batch]:
    """Batches of about `batch_tokens` padded tokens; a pool is sorted by length, cut up and shuffled.

    The first `easy_tokens` tokens are of easy conversations.
    """
    assistant = assistant_id(tokenizer)
    seen = 0
    while True:
        pool: list[list[int]] = []
        draw = easy_sample if seen < easy_tokens else sample
        while sum(map(len, pool)) < POOL_BATCHES * batch_tokens:
            drawn = encode(tokenizer, [draw(random) for _ in range(256)])
            pool += [tokens for tokens in drawn if len(tokens) <= LONGEST]
        seen += sum(map(len, pool))
        cut = list(groups(sorted(pool, key=len), batch_tokens))
        random.shuffle(cut)
        for group in cut:
            yield pack(group, assistant)


def groups(chats: list[list[int]], batch_tokens: int) -> Iterator[list[list[int]]]:
    """Consecutive chats, sorted by length, that fit a batch when padded."""
    group: list[list[int]] = []
    for tokens in chats:
        if group and len(tokens) * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(tokens)
    if group:
        yield group
