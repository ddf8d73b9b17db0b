import math
import os

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from texts import ADDRESS, OPTIONS, PROMPT, SERVED, post, report, texts

ENDINGS = [" five", " zebra"]
model = LocalCompletionsAPI(
    base_url=f"{ADDRESS}/completions", model=SERVED, tokenizer=os.environ["HEDDLE_MODEL_FOLDER"], max_length=2048
)


def ask(kind: str, *arguments: object) -> Instance:
    """One request of a task."""
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def likelihood(ending: str) -> tuple[float, bool]:
    """The same from one request without a client."""
    told = post("/completions", prompt=PROMPT + ending, echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    first = next(number for number, offset in enumerate(told["text_offset"]) if offset >= len(PROMPT))
    chosen, best = told["token_logprobs"][first:-1], told["top_logprobs"][first:-1]
    return sum(chosen), all(max(options.values()) == own for own, options in zip(chosen, best, strict=True))


found = model.loglikelihood([ask("loglikelihood", PROMPT, ending) for ending in ENDINGS])
wanted = [likelihood(ending) for ending in ENDINGS]
until = {"until": ["\n"], "max_gen_toks": OPTIONS["max_tokens"], "temperature": 0}
made = model.generate_until([ask("generate_until", PROMPT, until)])
report(
    loglikelihood=all(math.isclose(one[0], other[0], abs_tol=1e-3) for one, other in zip(found, wanted, strict=True)),
    greedy=[one[1] for one in found] == [other[1] for other in wanted],
    completion=made == texts(stop=["\n"]),
)
