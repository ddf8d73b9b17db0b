"""The whole loop of the protocol: train, save, sample, score, load, list, publish, delete."""

import math

from common import BASE, report, rest, service, supervised
from tinker import types

client = service()
capabilities = rest().get_server_capabilities().result()
training = client.create_lora_training_client(base_model=BASE, rank=4, seed=7).result()
info = training.get_info()
data = [supervised(seed) for seed in range(6)]

losses = []
for _ in range(12):
    computed = training.forward_backward(data, "cross_entropy")
    stepped = training.optim_step(types.AdamParams(learning_rate=2e-2))
    losses.append(computed.result().metrics["loss:sum"])
    norm = stepped.result().metrics["optim/grad_norm"]
output = training.forward(data, "cross_entropy").result()

saved = training.save_state("first", user_metadata={"why": "a test"}).result()
named = training.save_weights_for_sampler("sharp").result()
sampler = client.create_sampling_client(model_path=named.path).result()
prompt = types.ModelInput.from_ints(data[0].model_input.to_ints()[:4])
params = types.SamplingParams(max_tokens=8, temperature=0.7, seed=5)
drawn = sampler.sample(
    prompt, 2, params, include_prompt_logprobs=True, topk_prompt_logprobs=3, topk_sample_logprobs=2
).result()
again = sampler.sample(prompt, 2, params).result()
whole = types.ModelInput.from_ints(data[0].model_input.to_ints())
scored = sampler.compute_logprobs(whole).result()
last = sampler.compute_logprobs(whole, prompt_logprobs_last_n=2).result()
unnamed = training.save_weights_and_get_sampling_client().result()
other = unnamed.sample(prompt, 1, types.SamplingParams(max_tokens=4, temperature=0.0)).result()
base = client.create_sampling_client(base_model=BASE).result()
plain = base.compute_logprobs(whole).result()

# A copy with the optimizer goes on as the original does; one without begins anew.
copied = client.create_training_client_from_state_with_optimizer(saved.path).result()
fresh = client.create_training_client_from_state(saved.path).result()
paths = []
for one in (training, copied, fresh):
    one.forward_backward(data, "cross_entropy").result()
    one.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    paths.append(one.forward(data, "cross_entropy").result().metrics["loss:sum"])
training.load_state_with_optimizer(saved.path).result()
back = training.forward(data, "cross_entropy").result().metrics["loss:sum"]

asked = rest()
run = asked.get_training_run(training.model_id).result()
runs = asked.list_training_runs().result()
checkpoints = asked.list_checkpoints(training.model_id).result().checkpoints
mine = asked.list_user_checkpoints().result()
weights = asked.get_weights_info_by_tinker_path(saved.path).result()
asked.publish_checkpoint_from_tinker_path(saved.path).result()
asked.set_checkpoint_ttl_from_tinker_path(named.path, 7200).result()
changed = {one.tinker_path: one for one in asked.list_checkpoints(training.model_id).result().checkpoints}
asked.unpublish_checkpoint_from_tinker_path(saved.path).result()
asked.delete_checkpoint_from_tinker_path(named.path).result()
left = [one.tinker_path for one in asked.list_checkpoints(training.model_id).result().checkpoints]
session = asked.get_session(client.holder.get_session_id()).result()
refused = {}
for name, work in {
    "loss": lambda: training.forward_backward(data, "nonsense"),
    "again": lambda: training.save_state("first"),
    "gone": lambda: sampler.sample(prompt, 1, params),
}.items():
    try:
        work().result()
    except Exception as error:  # whatever the client makes of it
        refused[name] = f"{type(error).__name__}: {error}"
client.close("success").result()
report(
    models=[model.model_name for model in capabilities.supported_models],
    info=[info.model_data.model_name, info.lora_rank, info.is_lora],
    losses=losses,
    norm=norm,
    outputs=[[len(one["logprobs"].data), len(one["elementwise_loss"].data)] for one in output.loss_fn_outputs],
    paths=[saved.path, named.path],
    run_id=training.model_id,
    sampled=[[list(one.tokens), list(one.logprobs), one.stop_reason] for one in drawn.sequences],
    sampled_again=[list(one.tokens) for one in again.sequences],
    ids=[one.sequence_id for one in drawn.sequences],
    prompt=[None if value is None or math.isnan(value) else value for value in drawn.prompt_logprobs],
    best=[None if top is None else len(top) for top in drawn.topk_prompt_logprobs],
    scored=scored,
    last=last,
    plain=plain,
    greedy=list(other.sequences[0].tokens),
    trained=[float(value) for value in output.loss_fn_outputs[0]["logprobs"].data],
    gone_on=paths,
    back=back,
    before=output.metrics["loss:sum"],
    listed=[run.training_run_id, len(runs.training_runs), len(checkpoints), mine.cursor.total_count],
    weights=[weights.base_model, weights.lora_rank, weights.train_unembed],
    changed=[changed[saved.path].public, changed[named.path].expires_at is not None, changed[saved.path].user_metadata],
    left=left,
    session=[len(session.training_run_ids), len(session.sampler_ids)],
    refused=refused,
)
