"""Answers that the policy itself sampled are trained on: what the trainer makes of their logprobs."""

from common import BASE, report, service, supervised
from tinker import types

client = service()
training = client.create_lora_training_client(base_model=BASE, rank=4, seed=7).result()
told = []
for loss in ("importance_sampling", "ppo", "cispo"):
    training.forward_backward([supervised(1)], "cross_entropy")
    training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
    sampler = training.save_weights_and_get_sampling_client().result()
    data, sampled = [], []
    for length in (3, 40):
        prompt = supervised(length, length).model_input
        params = types.SamplingParams(max_tokens=30, temperature=1.0, seed=length)
        before = [0.0] * (length - 1)
        for place, one in enumerate(sampler.sample(prompt, 4, params).result().sequences):
            inputs = {
                # What is not trained may be anything, as where the cookbook writes 0.
                "target_tokens": [*([0] * (length - 1) if place else prompt.to_ints()[1:]), *one.tokens],
                "logprobs": [*before, *one.logprobs],
                "advantages": [*before, *[(-1.0) ** place] * len(one.tokens)],
            }
            whole = types.ModelInput.from_ints([*prompt.to_ints(), *one.tokens[:-1]])
            data.append(types.Datum(model_input=whole, loss_fn_inputs=inputs))
            sampled.append(one.logprobs)
    # Turned around, so that they are computed beside others than before.
    computed = training.forward_backward(data[::-1], loss).result()
    recomputed = [output["logprobs"].data for output in computed.loss_fn_outputs][::-1]
    apart = [
        abs(float(own) - float(old))
        for values, drawn in zip(recomputed, sampled, strict=True)
        for own, old in zip(values[-len(drawn) :], drawn, strict=True)
    ]
    told.append([loss, len(apart), max(apart)])
    training.optim_step(types.AdamParams(learning_rate=1e-2)).result()
report(told=told)
