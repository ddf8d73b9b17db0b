"""Which tokens of training data this server sampled itself, and with which weights."""

from collections.abc import Iterator, Sequence

import numpy as np
import orjson

from heddle.store.control.tinker import RunRow, TinkerRequests
from heddle.training.tinker.messages import Array, DataRequest, Datum, read_samples
from heddle.wire import times

MOST_RUNS = 16
MOST_PROMPTS = 4096
"""Of a run: those that were asked last are known."""
OVERLAP = 60 * times.SECOND
"""What ended shortly before the last look may have been written after it."""


class Drawn:
    """What samplers drew from the weights of one run, by prompt."""

    def __init__(self) -> None:
        self._looked_at = 0
        self._by_prompt: dict[bytes, dict[bytes, tuple[int, int]]] = {}
        """Length and the request that saved the weights, by tokens and logprobs."""

    async def read(self, requests: TinkerRequests, run: RunRow) -> None:
        """Learn what was drawn since the last look."""
        since, self._looked_at = self._looked_at - OVERLAP, times.now()
        for body, result, step in await requests.samples_of(run, since):
            prompt = [token for chunk in orjson.loads(body)["prompt"]["chunks"] for token in chunk["tokens"]]
            key = np.asarray(prompt, np.int64).tobytes()
            held = self._by_prompt.pop(key, {})
            self._by_prompt[key] = held
            for tokens, logprobs in read_samples(result):
                held[_name(tokens, logprobs)] = (len(tokens), step)
        while len(self._by_prompt) > MOST_PROMPTS:
            del self._by_prompt[next(iter(self._by_prompt))]

    def find(self, datum: Datum) -> Iterator[tuple[int, int, int]]:
        """Start and length of what was drawn among the targets of a datum, and the request that saved the weights."""
        if not self._by_prompt or "advantages" not in datum.inputs or "logprobs" not in datum.inputs:
            return
        targets, logprobs = datum.inputs["target_tokens"], datum.inputs["logprobs"]
        trained = (logprobs != 0) | (datum.inputs["advantages"] != 0)
        for start in np.flatnonzero(trained & ~np.concatenate([[False], trained[:-1]])).tolist():
            held = self._by_prompt.get(datum.tokens[: start + 1].tobytes(), {})
            for length in {length for length, _ in held.values()}:
                place = slice(start, start + length)
                found = held.get(_name(targets[place], logprobs[place]))
                if found is not None and found[0] == length > 0:
                    yield start, length, found[1]
                    break


def _name(tokens: Array, logprobs: Array) -> bytes:
    return tokens.astype(np.int32).tobytes() + logprobs.astype(np.float32).tobytes()


class Samples:
    """What is known of the runs that were trained last."""

    def __init__(self, requests: TinkerRequests) -> None:
        self._requests = requests
        self._runs: dict[str, Drawn] = {}

    async def find(self, run: RunRow, request: DataRequest) -> Sequence[tuple[int, int, int, int]]:
        """Datum, start, length and the request that saved the weights, of all that this server sampled."""
        drawn = self._runs.pop(run.id, None) or Drawn()
        self._runs[run.id] = drawn
        while len(self._runs) > MOST_RUNS:
            del self._runs[next(iter(self._runs))]
        await drawn.read(self._requests, run)
        return [(number, *span) for number, datum in enumerate(request.data) for span in drawn.find(datum)]
