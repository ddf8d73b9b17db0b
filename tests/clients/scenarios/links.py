"""Prompts linked into a registry, a custom runtime, and where rows of a dataset came from."""

import os
from typing import Any

import weave
from common import PROJECT, plain, report, start

client = start()
ENTITY = PROJECT.split("/")[0]


def request(name: str, **fields: Any) -> Any:
    """What a method of the server binding takes: a model in older SDKs, plain fields in newer ones."""
    try:
        from weave.trace_server import trace_server_interface
    except ImportError:
        return fields
    return getattr(trace_server_interface, name)(**fields)


prompts = [weave.StringPrompt(f"Answer {word}") for word in ("shortly", "at length")]
published = [weave.publish(prompt, "answering") for prompt in prompts]
indexes = [
    weave.link_prompt_to_registry(ref, target_path="wandb-registry-prompts/answers", aliases=aliases).version_index
    for ref, aliases in ((published[0], ["prod"]), (published[1], None), (published[0], None))
]
linked = weave.get(f"weave:///{ENTITY}/wandb-registry-prompts/object/answers:v0")

runtime = client.register_custom_runtime(
    name="box", base_url=os.environ["RUNTIME_URL"], runtime_ids=["org/model-a"], headers={"x-team": "blue"}
)
playground_id = runtime.runtime_ids[0].playground_id
completed = client.server.completions_create(
    request(
        "CompletionsCreateReq",
        project_id=PROJECT,
        inputs={"model": playground_id, "messages": [{"role": "user", "content": "hello"}]},
    )
)

dataset = weave.publish(weave.Dataset(name="rows", rows=[{"q": "a"}]), "rows")
client.flush()
source = {"source_kind": "call", "source_id": "c1", "source_trace_id": "t1"}
link = client.server.dataset_sources_link(
    request(
        "DatasetSourcesLinkReq",
        project_id=PROJECT,
        dataset_object_id=dataset.name,
        dataset_digest=dataset.digest,
        links=[{"row_digest": "r1", "sources": [source], "link_metadata": {"a": 1}}],
        include_created_status=True,
    )
)
sources = client.server.dataset_sources_query(
    request("DatasetSourcesQueryReq", project_id=PROJECT, dataset_object_id=dataset.name)
)
members = client.server.source_datasets_query(request("SourceDatasetsQueryReq", project_id=PROJECT, sources=[source]))
deleted = client.server.dataset_sources_link_delete(
    request("DatasetSourcesLinkDeleteReq", project_id=PROJECT, link_ids=[link.entries[0].link_id])
)
image = client.server.image_create(
    request("ImageGenerationCreateReq", project_id=PROJECT, inputs={"model": "box/picture", "prompt": "a cat"})
)

report(
    indexes=indexes,
    content=linked.content,
    refs=[ref.uri() for ref in published],
    runtime=[runtime.name, runtime.base_url, runtime.runtime_ids[0].max_tokens, playground_id],
    said=plain(completed.response)["choices"][0]["message"]["content"],
    created=link.entries[0].created,
    rows=[[entry.row_digest, entry.source_id, plain(entry.link_metadata)] for entry in sources.links],
    datasets=[[entry.dataset_object_id, list(entry.row_digests)] for entry in members.memberships],
    deleted=[entry.deleted for entry in deleted.entries],
    image=plain(image.response),
)
