"""What the client looks up and moves beside training: sessions, storage, copies, downloads, and what is refused."""

import datetime
import os
import urllib.request
import warnings
from pathlib import Path

import tinker
import torch
from common import BASE, KEY, SERVER, report, rest, service, supervised
from tinker import types

warnings.simplefilter("ignore")
FOLDER = Path(os.environ["SCENARIO_FOLDER"])
PROJECT = os.environ["SCENARIO_PROJECT"]
client = service()
training = client.create_lora_training_client(base_model=BASE, rank=4, seed=7, user_metadata={"k": "v"}).result()
data = [supervised(seed) for seed in range(2)]
for _ in range(2):
    training.forward_backward(data, "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
state = training.save_state("state").result().path
sharp = training.save_weights_for_sampler("sharp").result().path
folder = training.save_weights_external("folder", ttl_seconds=7200).result().path
asked = rest()


def bytes_of(path):
    """What a download of a checkpoint holds, by file."""
    urls = asked.get_external_weights_urls(path).result().urls
    return {name: urllib.request.urlopen(url).read() for name, url in urls.items()}


files = bytes_of(folder)
urls = asked.get_external_weights_urls(folder).result()

# Copies into another project, by the client of that project: they load, sample and stay when the first is deleted.
other = service(f"{PROJECT}-archive")
copied = {
    name: other.copy_weights(path, ttl_seconds=7200).result()
    for name, path in {"state": state, "sharp": sharp, "folder": folder}.items()
}
before = training.forward(data, "cross_entropy").result().metrics["loss:sum"]
asked.delete_checkpoint_from_tinker_path(state).result()
asked.delete_checkpoint_from_tinker_path(sharp).result()
again = other.create_training_client_from_state_with_optimizer(copied["state"]).result()
sampler = other.create_sampling_client(model_path=copied["sharp"]).result()
whole = types.ModelInput.from_ints(data[0].model_input.to_ints())
# Logprobs of tokens that are named, in both layouts; what is drawn has the logprobs that it has when it is named.
short, ids = types.SamplingParams(max_tokens=1, seed=3, temperature=0.7), whole.to_ints()
cells = torch.tensor([[token, -1, token ^ 1] for token in ids[1:]])
wide, thin = types.TensorData.from_torch(cells), types.TensorData.from_torch_sparse(cells, pad_value=-1)
named = [
    sampler.sample(
        whole, 1, short, include_prompt_logprobs=True, target_prompt_logprobs=one, prompt_alt_tokens_k=4
    ).result()
    for one in (wide, thin)
]
drawn = [one.prompt_alt_tokens for one in named]
again_named = sampler.sample(whole, 1, short, target_prompt_logprobs=drawn[0].tokens).result().target_prompt_logprobs
choices = {
    "dense": named[0].target_prompt_logprobs.to_torch().tolist(),
    "sparse": named[1].target_prompt_logprobs.to_torch().to_dense().tolist(),
    "prompt": named[0].prompt_logprobs[1:],
    "drawn": [one.tokens.to_torch().tolist() for one in drawn],
    "logprobs": drawn[0].logprobs.to_torch().tolist(),
    "named": again_named.to_torch().tolist(),
}
listed = asked.list_user_checkpoints().result().checkpoints
kinds = {one.tinker_path: (one.checkpoint_type, one.expires_at is not None) for one in listed}

# Sessions.
mine, theirs = client.holder.get_session_id(), other.holder.get_session_id()
empty = service(PROJECT)
lonely = empty.holder.get_session_id()
asked.assign_session_project(lonely, f"{PROJECT}-archive").result()
client.close("success").result()


def search(**wanted):
    """The sessions of every page."""
    request, found = types.SessionSearchRequest(limit=1, **wanted), []
    while True:
        page = asked.search_sessions(request).result()
        found += page.sessions
        if page.next_cursor is None:
            return found
        request = request.model_copy(update={"cursor": page.next_cursor})


done = types.ClientFinishedSessionStatusQuery(reasons=["success"])
active = types.ActiveSessionStatusQuery()
found = {
    "project": [one.session_id for one in search(project_ids=[PROJECT])],
    "archive": [one.session_id for one in search(project_ids=[f"{PROJECT}-archive"], display_name="TEST a")],
    "done": [one.session_id for one in search(project_ids=[PROJECT], statuses=[done])],
    "active": [one.session_id for one in search(project_ids=[PROJECT], statuses=[active])],
    "id": [one.session_id for one in search(session_id=mine)],
    "nobody": [one.session_id for one in search(owner=types.UserSearchOwner(owner_urns=["nobody"]))],
    "metadata": [one.session_id for one in search(user_metadata={"no": "such"})],
}
(summary,) = search(session_id=mine)
admin = tinker.AdminClient(base_url=SERVER, api_key=KEY)
(used,) = admin.get_current_checkpoint_storage_usage(PROJECT).result().data
refused = {}
today = datetime.date(2026, 1, 1)
for name, work in {
    "age": lambda: again.save_weights_external("secret", age_encryption_recipients=["age1xyz"]),
    "move": lambda: asked.assign_session_project(mine, f"{PROJECT}-archive"),
    "missing": lambda: asked.get_external_weights_urls("tinker://nobody/external_weights/no"),
    "token": lambda: other.copy_weights(folder, weights_access_token="token"),
    "dimuon": lambda: other.create_lora_training_client(base_model=BASE, optimizer=types.DimuonOptimizerConfig()),
    "alternatives": lambda: sampler.sample(whole, 1, types.SamplingParams(max_tokens=1), prompt_alt_tokens_k=65),
    "targets": lambda: sampler.sample(
        whole,
        1,
        types.SamplingParams(max_tokens=1),
        target_prompt_logprobs=types.TensorData(data=[1] * 10, dtype="int64", shape=[10, 1]),
    ),
    "trace": lambda: asked.export_session_trace(theirs),
    "audit": lambda: admin.get_audit_log("all", today),
    "billing": lambda: admin.get_billing_usage(datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)),
    "whoami": lambda: asked.whoami(),
}.items():
    try:
        work().result(timeout=60)
        refused[name] = "done"
    except Exception as error:  # whatever the client makes of it
        refused[name] = f"{type(error).__name__}: {error}"
report(
    files={name: len(content) for name, content in files.items()},
    same=bytes_of(copied["folder"]) == files,
    ends=urls.expires.isoformat(),
    copied=copied,
    losses=[before, again.forward(data, "cross_entropy").result().metrics["loss:sum"]],
    scored=len(sampler.compute_logprobs(whole).result()),
    kinds=[kinds[path] for path in copied.values()],
    sessions=[mine, theirs, lonely],
    found=found,
    summary=[summary.owner, summary.project_id, summary.status.type, summary.checkpoints_count],
    used=[used.checkpoint_count, used.size_bytes == summary.checkpoint_storage_bytes],
    refused=refused,
    choices=choices,
)
