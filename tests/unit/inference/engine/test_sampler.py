"""A whole sampling step, against a reference that does one row and one field after the other."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from heddle.inference.engine.base import PromptChoices, RequestRefused, TokenRequest  # noqa: E402
from heddle.inference.engine.local.sampler import Choices, Sampler, add_choices, forbidden_tokens  # noqa: E402
from heddle.inference.engine.local.sequence import Sequence, TokenCounts  # noqa: E402
from tests.unit.inference.engine.helpers import request  # noqa: E402

WIDTH = 40
EOS = (2, 3)


def sequence_of(number: int, each: TokenRequest, output: list[int]) -> Sequence:
    """A sequence that has generated `output`."""
    sequence = Sequence.of(number, each, number)
    if TokenCounts.needed(each.sampling):
        sequence.counts = TokenCounts(each.prompt, each.sampling)
    for token in output:
        sequence.tokens.append(token)
        if sequence.counts is not None:
            sequence.counts.add(token)
    return sequence


def adjusted(logits: np.ndarray, sequence: Sequence) -> np.ndarray:
    """The logits after each field in the order of the contract."""
    sampling = sequence.request.sampling
    output = sequence.tokens[sequence.prompt_tokens :]
    result = logits.astype(np.float64).copy()
    if sampling.allowed_token_ids is not None:
        result[[token for token in range(WIDTH) if token not in sampling.allowed_token_ids]] = -np.inf
    for word in sampling.bad_words:
        if len(word) == 1 or tuple(output[-(len(word) - 1) :]) == word[:-1]:
            result[word[-1]] = -np.inf
    if len(output) < sampling.min_tokens:
        result[[*EOS, *sampling.stop_token_ids]] = -np.inf
    for token, bias in sampling.logit_bias.items():
        result[token] += bias
    for token in range(WIDTH):
        if token in sequence.request.prompt or token in output:
            factor = sampling.repetition_penalty
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        result[token] -= sampling.frequency_penalty * output.count(token)
        result[token] -= sampling.presence_penalty * (token in output)
    return result


CASES: list[tuple[dict[str, Any], list[int]]] = [
    ({}, []),
    ({"allowed_token_ids": (5, 6, 7)}, []),
    ({"bad_words": ((9,), (1, 8), (4, 4, 6))}, [4, 4]),
    ({"bad_words": ((9,), (1, 8), (4, 4, 6))}, [1]),
    ({"min_tokens": 2, "stop_token_ids": (11, 12)}, [5]),
    ({"min_tokens": 2, "stop_token_ids": (11, 12)}, [5, 5]),
    ({"logit_bias": {7: 100.0, 8: -100.0, 0: 1.5}}, [7]),
    ({"repetition_penalty": 1.8}, [5, 5, 39]),
    ({"repetition_penalty": 0.4}, [5, 5, 39]),
    ({"frequency_penalty": 1.1}, [5, 5, 39, 5]),
    ({"presence_penalty": -2.0}, [5, 5, 39]),
    ({"presence_penalty": -2.0, "repetition_penalty": 1.01}, [5, 5, 39]),
    ({"frequency_penalty": 0.3, "presence_penalty": 0.2, "repetition_penalty": 1.2, "logit_bias": {5: 3.0}}, [5] * 9),
    (
        {
            "allowed_token_ids": (2, 3, 5, 20, 21, 22),
            "bad_words": ((20,),),
            "min_tokens": 9,
            "logit_bias": {22: 2.0},
            "repetition_penalty": 1.5,
        },
        [22, 21],
    ),
]


@pytest.mark.parametrize("together", [True, False], ids=["together", "alone"])
@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_every_field_changes_the_choice_as_the_contract_says(together: bool, temperature: float) -> None:
    random = np.random.default_rng(3)
    sequences = [
        sequence_of(number, request([1, 5, 6], temperature=temperature, seed=number, **fields), output)
        for number, (fields, output) in enumerate(CASES * 12)
    ]
    logits = (random.standard_normal((len(sequences), WIDTH)) * 2).astype(np.float32)
    sampler = Sampler(WIDTH, EOS, 2)
    if together:
        tokens = sampler.sample(torch.from_numpy(logits.copy()), sequences).tokens
    else:
        rows = [torch.from_numpy(row[None].copy()) for row in logits]
        tokens = [sampler.sample(row, [each]).tokens[0] for row, each in zip(rows, sequences, strict=True)]
    for token, row, sequence in zip(tokens, logits, sequences, strict=True):
        wanted = adjusted(row, sequence)
        assert wanted[token] > -np.inf
        if temperature == 0.0:
            assert token == int(wanted.argmax())
        else:
            assert token == reference_draw(wanted, sequence)


def test_greedy_rows_and_drawn_rows_side_by_side_are_as_alone() -> None:
    logits = (np.random.default_rng(4).standard_normal((40, WIDTH)) * 2).astype(np.float32)
    fields = ({"temperature": 0.0}, {"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.8}, {"temperature": 1e-9})
    sequences = [sequence_of(number, request([1], seed=number, **fields[number % 4]), []) for number in range(40)]
    sampler = Sampler(WIDTH, EOS, 2)
    alone = [
        sampler.sample(torch.from_numpy(row[None].copy()), [each]).tokens[0]
        for row, each in zip(logits, sequences, strict=True)
    ]
    for _ in range(2):
        assert sampler.sample(torch.from_numpy(logits.copy()), sequences).tokens == alone
    assert alone[0::4] == logits[0::4].argmax(1).tolist() != alone[1::4]


def reference_draw(logits: np.ndarray, sequence: Sequence) -> int:
    from heddle.inference.engine.local.draw import uniforms

    number = uniforms(np.array([sequence.seed], dtype=np.uint64), [sequence.output_count])[0, 0]
    chances = np.exp((logits - logits.max()) / sequence.request.sampling.temperature)
    return int(np.searchsorted(np.cumsum(chances), number * chances.sum(), side="right"))


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [0, 1, 3], [3], [2, 0], [0]])
def test_logprobs_are_raw_whatever_else_is_asked_for(rows: list[int]) -> None:
    random = np.random.default_rng(5)
    logits = (random.standard_normal((4, WIDTH)) * 3).astype(np.float32)
    fields: list[dict[str, Any]] = [
        {"logprobs": 3},
        {"logprobs": 0, "temperature": 2.0, "logit_bias": {4: 50.0}},
        {},
        {"logprobs": WIDTH, "allowed_token_ids": (11, 12), "repetition_penalty": 3.0},
    ]
    logits, fields = logits[rows], [fields[row] for row in rows]
    sequences = [sequence_of(number, request([1, 2], **each), []) for number, each in enumerate(fields)]
    choices = Sampler(WIDTH, EOS, 2).sample(torch.from_numpy(logits.copy()), sequences)
    assert sorted(choices.logprobs) == [row for row, each in enumerate(fields) if each]
    for row, (token, logprob, rank, top) in choices.logprobs.items():
        exact = logits[row].astype(np.float64)
        exact -= np.log(np.exp(exact).sum())
        order = np.argsort(-exact, kind="stable")
        assert token == choices.tokens[row]
        assert logprob == pytest.approx(exact[token], abs=1e-5)
        assert order[rank - 1] == token
        assert [best for best, _ in top] == order[: fields[row]["logprobs"]].tolist()
        assert [value for _, value in top] == pytest.approx(exact[order[: len(top)]], abs=1e-5)


@pytest.mark.parametrize("divisors", [(1.0, 1.0), (1.0, 2.0), (2.0, 2.0), (0.5, 3.0)])
def test_logprobs_may_have_a_temperature_of_their_own(divisors: tuple[float, float]) -> None:
    logits = (np.random.default_rng(8).standard_normal((2, WIDTH)) * 3).astype(np.float32)
    sequences = [
        sequence_of(number, request([1], temperature=0.0, logprobs=0, logprobs_temperature=divisor), [])
        for number, divisor in enumerate(divisors)
    ]
    choices = Sampler(WIDTH, EOS, 2).sample(torch.from_numpy(logits.copy()), sequences)
    assert choices.tokens == logits.argmax(1).tolist()
    for row, divisor in enumerate(divisors):
        token, value, rank, best = choices.logprobs[row]
        assert (token, rank, best) == (logits[row].argmax(), 1, ())
        assert value == pytest.approx(raw_logprobs(logits / divisor)[row, token], abs=1e-5)


def test_equal_logprobs_come_in_the_order_of_their_ids_and_minus_infinity_is_a_number() -> None:
    logits = torch.full((2, WIDTH), float("-inf"))
    logits[0, [30, 4, 17]] = 1.0
    logits[1] = 0.5
    sequences = [sequence_of(number, request([1], logprobs=5), []) for number in range(2)]
    choices = Sampler(WIDTH, EOS, 2).sample(logits, sequences)
    first, second = choices.logprobs[0], choices.logprobs[1]
    assert [token for token, _ in first[3]] == [4, 17, 30, 0, 1]
    assert [value for _, value in first[3]][3:] == [-9999.0, -9999.0]
    assert first[2] == 1
    assert [token for token, _ in second[3]] == [0, 1, 2, 3, 4]


def test_many_equal_logprobs_come_in_the_order_of_their_ids() -> None:
    width = 900
    logits = torch.from_numpy(np.random.default_rng(3).permutation(np.arange(width) // 3).astype(np.float32))[None]
    choices = Sampler(width, EOS, 29).sample(logits.clone(), [sequence_of(0, request([1], logprobs=600), [])])
    wanted = sorted(range(width), key=lambda token: (-float(logits[0, token]), token))[:600]
    assert [token for token, _ in choices.logprobs[0][3]] == wanted


def test_a_row_without_a_token_fails_alone() -> None:
    logits = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(0))
    logits[3] = float("nan")
    fields: list[dict[str, Any]] = [{}, {"allowed_token_ids": (5,), "bad_words": ((5,),)}, {}, {}]
    for temperature in (0.0, 1.0):
        sequences = [
            sequence_of(number, request([1], temperature=temperature, logprobs=1, **each), [])
            for number, each in enumerate(fields)
        ]
        choices: Choices = Sampler(WIDTH, EOS, 2).sample(logits.clone(), sequences)
        assert {row: type(error) for row, error in choices.failures.items()} == {1: RequestRefused, 3: RequestRefused}
        assert all(0 <= token < WIDTH for token in choices.tokens)


def test_a_row_of_a_large_vocabulary_that_fails_has_a_token_of_it() -> None:
    width = 1100
    logits = torch.randn(2, width, generator=torch.Generator().manual_seed(0))
    logits[1] = float("nan")
    sequences = [sequence_of(number, request([1], temperature=1.0, logprobs=1), []) for number in range(2)]
    choices = Sampler(width, EOS, 40).sample(logits, sequences)
    assert list(choices.failures) == [1] and all(0 <= token < width for token in choices.tokens)


def test_counts_grow_beyond_their_first_room() -> None:
    each = request([0, 1, 0], repetition_penalty=1.1, frequency_penalty=0.5)
    counts = TokenCounts(each.prompt, each.sampling)
    for token in [*range(1, 700), 5, 5]:
        counts.add(token)
    found = dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True))
    assert found == {0: 0.0} | dict.fromkeys(range(1, 700), 1.0) | {5: 3.0}


def chosen_beside(row: np.ndarray, choices: PromptChoices, **sampling: Any) -> list[tuple[Any, ...]]:
    """What `add_choices` says of each place of a prompt, the best tokens before it taken away."""
    known = [(0, -1.0, 1, ((7, -0.5),)) for _ in row]
    each = request([1], prompt_choices=choices, **sampling).sampling
    found = add_choices(known, torch.from_numpy(row.copy()), each, 3)
    assert [(token, value, rank, best[0]) for token, value, rank, best in found] == [(0, -1.0, 1, (7, -0.5))] * len(row)
    return [best[1:] for *_, best in found]


def raw_logprobs(row: np.ndarray) -> np.ndarray:
    exact = row.astype(np.float64)
    return np.asarray(exact - np.log(np.exp(exact).sum(1, keepdims=True)))


def test_tokens_named_at_places_of_a_prompt_have_their_raw_logprobs() -> None:
    row = (np.random.default_rng(6).standard_normal((2, WIDTH)) * 3).astype(np.float32)
    row[1, 5] = -np.inf
    ids = ((), (), (), (9, 4, 9), (5,))
    found = chosen_beside(row, PromptChoices(ids), temperature=0.3)
    assert [[token for token, _ in place] for place in found] == [[9, 4, 9], [5]]
    assert [value for _, value in found[0]] == pytest.approx(raw_logprobs(row)[0, [9, 4, 9]], abs=1e-5)
    assert found[1] == ((5, -9999.0),)


def test_tokens_drawn_at_places_of_a_prompt_are_those_of_seed_place_and_temperature() -> None:
    row = (np.random.default_rng(7).standard_normal((2, WIDTH)) * 3).astype(np.float32)
    found = chosen_beside(row, PromptChoices(draws=4000, seed=11), temperature=0.5)
    assert found == chosen_beside(row, PromptChoices(draws=4000, seed=11), temperature=0.5)
    assert found != chosen_beside(row, PromptChoices(draws=4000, seed=12), temperature=0.5)
    for place, (drawn, logits) in enumerate(zip(found, row, strict=True), 3):
        chances = np.exp(logits.astype(np.float64) / 0.5)
        numbers = np.random.default_rng([11, place]).random(4000)
        wanted = np.searchsorted(np.cumsum(chances), numbers * chances.sum(), side="right")
        assert [token for token, _ in drawn] == wanted.tolist()
        values = raw_logprobs(logits[None])[0]
        assert [value for _, value in drawn] == pytest.approx(values[wanted], abs=1e-5)


def test_draws_without_temperature_are_the_best_token_behind_the_named_ones() -> None:
    row = np.zeros((2, WIDTH), dtype=np.float32)
    row[0, 8] = row[1, 9] = 1.0
    found = chosen_beside(row, PromptChoices(((), (), (), (1,), (2, 3)), draws=2))
    assert [[token for token, _ in place] for place in found] == [[1, 8, 8], [2, 3, 9, 9]]


@pytest.mark.parametrize("count", [1, 2])
def test_of_several_equal_ones_those_with_the_lowest_ids_are_the_best(count: int) -> None:
    triples = np.random.default_rng(9).permuted(np.tile(np.arange(WIDTH), (50, 1)), axis=1)[:, :3]
    logits = torch.zeros(50, WIDTH)
    for row, ids in enumerate(triples.tolist()):
        logits[row, ids] = 1.0
    sequences = [sequence_of(number, request([1], logprobs=count), []) for number in range(50)]
    found = Sampler(WIDTH, EOS, 2).sample(logits, sequences).logprobs
    assert [[token for token, _ in found[row][3]] for row in range(50)] == np.sort(triples)[:, :count].tolist()


def test_of_several_equal_ones_behind_a_better_one_that_with_the_lowest_id_is_taken() -> None:
    places = np.random.default_rng(10).permuted(np.tile(np.arange(WIDTH), (50, 1)), axis=1)[:, :4]
    logits = torch.zeros(50, WIDTH)
    for row, (best, *ids) in enumerate(places.tolist()):
        logits[row, ids] = 1.0
        logits[row, best] = 2.0
    sequences = [sequence_of(number, request([1], logprobs=2), []) for number in range(50)]
    found = Sampler(WIDTH, EOS, 2).sample(logits, sequences).logprobs
    wanted = [[best, min(ids)] for best, *ids in places.tolist()]
    assert [[token for token, _ in found[row][3]] for row in range(50)] == wanted


@pytest.mark.parametrize("top_p", [0.02, 0.9])
def test_top_p_of_a_flat_distribution_draws_from_the_best(top_p: float) -> None:
    width, rows = 2000, 200
    logits = torch.linspace(1.0, 0.0, width).repeat(rows, 1)
    sequences = [sequence_of(n, request([1], temperature=1.0, top_p=top_p, seed=n), []) for n in range(rows)]
    tokens = Sampler(width, EOS, 63).sample(logits, sequences).tokens
    best = int((logits[0].softmax(0).cumsum(0) < top_p).sum())
    assert max(tokens) <= best < 2 * max(tokens)


@pytest.mark.parametrize(
    ("output", "forbidden"),
    [
        ([], [9]),
        ([4], [9, 8]),
        ([4, 4], [9, 8, 6]),
        ([5, 4], [9, 8]),
        ([4, 5], [9]),
        ([1, 4, 7], [9, 3]),
        ([2, 4, 7], [9]),
    ],
)
def test_of_a_bad_word_the_end_is_forbidden_behind_its_start(output: list[int], forbidden: list[int]) -> None:
    each = request([4, 4, 4], bad_words=((9,), (4, 8), (4, 4, 6), (1, 4, 7, 3)))
    assert forbidden_tokens(sequence_of(0, each, output), EOS) == forbidden


class Allows:
    """A grammar that allows some tokens, fails, or has not begun."""

    complete = False

    def __init__(self, *tokens: int, active: bool = True) -> None:
        self._tokens = tokens
        self.active = active

    def fill(self, words: np.ndarray) -> None:
        assert self.active and not words.any(), "an empty mask of its own"
        if not self._tokens:
            raise RequestRefused("too complex")
        for token in self._tokens:
            words[token // 32] |= np.int32(1 << token % 32)


def test_grammars_mask_their_own_rows_and_fail_alone() -> None:
    logits = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(1))
    grammars = [Allows(5, active=False), Allows(33), None, Allows(), Allows(2, 39), Allows(6)]
    sequences = [sequence_of(number, request([1]), []) for number in range(6)]
    for sequence, grammar in zip(sequences, grammars, strict=True):
        sequence.matcher = grammar  # type: ignore[assignment]
    best = logits.argmax(1).tolist()
    choices = Sampler(WIDTH, EOS, 2).sample(logits.clone(), sequences)
    assert choices.tokens[0] == best[0] and choices.tokens[2] == best[2]
    assert choices.tokens[1] == 33 and choices.tokens[5] == 6
    assert choices.tokens[4] == (2 if logits[4, 2] > logits[4, 39] else 39)
    assert {row: str(error) for row, error in choices.failures.items()} == {3: "too complex"}


def test_a_row_without_a_token_ends_where_its_grammar_is_complete() -> None:
    logits = torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))
    logits[:, 5] = float("-inf")
    sequences = [sequence_of(number, request([1]), []) for number in range(3)]
    complete, begun = Allows(5), Allows(5)
    complete.complete = True
    for sequence, grammar in zip(sequences, (complete, begun, None), strict=True):
        sequence.matcher = grammar  # type: ignore[assignment]
    choices = Sampler(WIDTH, EOS, 2).sample(logits, sequences)
    assert choices.ended == {0} and {row: type(error) for row, error in choices.failures.items()} == {1: RequestRefused}
    assert all(0 <= token < WIDTH for token in choices.tokens)


def test_a_model_that_allows_nothing_by_itself_fails() -> None:
    for fields in ({}, {"temperature": 1.0}):
        sequences = [sequence_of(0, request([1], **fields), [])]
        choices = Sampler(WIDTH, EOS, 2).sample(torch.full((1, WIDTH), float("-inf")), sequences)
        assert [type(error) for error in choices.failures.values()] == [RequestRefused]
        assert not choices.ended and 0 <= choices.tokens[0] < WIDTH


def test_a_tie_at_the_last_wanted_place_goes_to_the_lower_id() -> None:
    logits = torch.zeros(2, WIDTH)
    logits[0, [30, 4, 17]] = torch.tensor([2.0, 1.0, 1.0])
    logits[1, [30, 4, 17]] = torch.tensor([1.0, 2.0, 3.0])
    sequences = [sequence_of(number, request([1], logprobs=2), []) for number in range(2)]
    found = Sampler(WIDTH, EOS, 2).sample(logits, sequences).logprobs
    assert [token for token, _ in found[0][3]] == [30, 4]
    assert [token for token, _ in found[1][3]] == [17, 4]
    assert [value for _, value in found[0][3]] == pytest.approx(raw_logprobs(logits.numpy())[0, [30, 4]], abs=1e-5)
