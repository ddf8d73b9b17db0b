"""Where `--engine vllm` may differ from the embedded engine: tests that fail there, and why that is right."""

IN_ANY_CASE = {
    "api/inference/test_without_extra.py::test_chat_names_the_command": "another extra: vllm",
    "api/inference/test_other_model.py::test_another_name": (
        "a model folder that is not there is known at the start, so the server never becomes ready"
    ),
    "api/inference/test_other_model.py::test_the_folder_is_served_under_its_name": (
        "the servers are there from the start, so the context that fits is known before the first request"
    ),
    "api/inference/test_embeddings.py": "servers that generate do not pool",
    "api/inference/test_faults.py::test_a_killed_worker": "no worker of heddle's own (see test_vllm_servers.py)",
    "api/inference/test_faults.py::test_sigterm_ends_streams_and_the_worker": "the same",
    "api/inference/test_faults.py::test_sigterm_cuts_streams_after_the_grace": "the same",
    "api/inference/test_faults.py::test_a_killed_server_leaves_no_worker": "the same",
}
"""By the beginning of the test's id."""
WITH_A_REAL_SERVER = {
    "api/inference/test_adapters.py::test_adapters_and_the_base_in_one_batch": "a batch changes the last bits there",
    "api/inference/test_adapters.py::test_the_cache_does_not_mix_versions": "blocks of 128 tokens on a processor",
    "api/inference/test_sampling.py::test_seed_reaches_to_the_bounds": "its last bits depend on what is cached",
    "api/inference/test_usage.py::test_streams_choices_and_cached_tokens_are_counted": "the same",
    "api/inference/test_fields_structured.py::test_constraints_of_neighbours": "what it draws is longer",
}
"""The same where the tokens are vLLM's own."""


def reason_of(test: str, is_real: bool) -> str | None:
    """Why a test may fail; None where it must pass."""
    known = IN_ANY_CASE | (WITH_A_REAL_SERVER if is_real else {})
    return next((reason for start, reason in known.items() if test.removeprefix("tests/").startswith(start)), None)
