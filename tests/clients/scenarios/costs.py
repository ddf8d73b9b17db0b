"""Prices of a project's own, default prices, cached tokens, unpriced models, usage summed over children."""

import datetime

import weave
from common import plain, report, start

client = start()


@weave.op
def ask(model: str, prompt: int, completion: int) -> str:
    """One model call."""
    call = weave.require_current_call()
    call.summary["usage"] = {model: {"prompt_tokens": prompt, "completion_tokens": completion, "requests": 1}}
    return "answer"


@weave.op
def ask_cached(model: str) -> str:
    """A call that read and wrote a provider's cache."""
    call = weave.require_current_call()
    call.summary["usage"] = {
        model: {
            "input_tokens": 1000,
            "output_tokens": 10,
            "cache_read_input_tokens": 600,
            "cache_creation_input_tokens": 100,
            "requests": 1,
        }
    }
    return "answer"


@weave.op
def team(model: str) -> list[str]:
    """Two model calls below one."""
    return [ask(model, 100, 10), ask(model, 200, 20)]


created = client.add_cost(llm_id="house-model", prompt_token_cost=0.001, completion_token_cost=0.002)
old = client.add_cost(
    llm_id="house-model",
    prompt_token_cost=9,
    completion_token_cost=9,
    effective_date=datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC),
)
cached = client.add_cost(
    llm_id="cached-model",
    prompt_token_cost=0.01,
    completion_token_cost=0.1,
    cache_read_input_token_cost=0.001,
    cache_creation_input_token_cost=0.02,
    provider_id="house",
)
purged = client.add_cost(llm_id="purged-model", prompt_token_cost=5, completion_token_cost=5)
calls = {
    "house": ask.call("house-model", 10, 5)[1].id,
    "cached": ask_cached.call("cached-model")[1].id,
    "default": ask.call("gpt-4o-2024-08-06", 1000, 100)[1].id,
    "unpriced": ask.call("nobody-knows-this-model", 7, 3)[1].id,
    "team": team.call("house-model")[1].id,
}
client.flush()


def ids(response: object) -> list[str]:
    """The ids of created prices."""
    return [pair[0] for pair in response.ids]


def names(results: list) -> list[str]:
    """The models of priced rows, sorted."""
    return sorted(row.llm_id for row in results)


before = names(client.query_costs())
by_model = [[row.prompt_token_cost, row.completion_token_cost] for row in client.query_costs(llm_ids=["cached-model"])]
by_id = names(client.query_costs(ids(purged)[0]))
limited = len(client.query_costs(limit=2))
client.purge_costs(ids(purged))
client.purge_costs(ids(purged)[0])
after = names(client.query_costs())


def costs(name: str) -> dict:
    """The costs the SDK shows on a call."""
    return plain(client.get_call(calls[name], include_costs=True).summary["weave"].get("costs", {}))


listed = {
    call.id: plain(call.summary["weave"].get("costs", {}))
    for call in client.get_calls(include_costs=True, filter={"trace_roots_only": True})
}
report(
    calls=calls,
    created=[created.ids[0][1], len(created.ids)],
    before=before,
    after=after,
    by_model=by_model,
    by_id=by_id,
    limited=limited,
    house=costs("house"),
    cached=costs("cached"),
    default=costs("default"),
    unpriced=costs("unpriced"),
    team=costs("team"),
    listed=listed,
    without="costs" in client.get_call(calls["house"]).summary["weave"],
    team_usage=plain(client.get_call(calls["team"]).summary["usage"]),
)
