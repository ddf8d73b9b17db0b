import os

from weather import PROJECT, URL, report

os.environ |= {
    "LANGFUSE_HOST": URL,
    "LANGFUSE_PUBLIC_KEY": PROJECT,
    "LANGFUSE_SECRET_KEY": os.environ["OPENAI_API_KEY"],
}
from langfuse import Evaluation, get_client, observe

client = get_client()
chat = [{"role": "system", "content": "Answer {{how}}."}, {"type": "placeholder", "name": "history"}]
client.create_prompt(name="folder/weather", type="chat", prompt=chat, labels=["production"], config={"model": "m"})
client.create_prompt(name="folder/weather", type="chat", prompt=chat, labels=["next"], tags=["new"])
client.update_prompt(name="folder/weather", version=2, new_labels=["blue"])
prompt = client.get_prompt("folder/weather", type="chat", cache_ttl_seconds=0)
blue = client.get_prompt("folder/weather", type="chat", label="blue", cache_ttl_seconds=0)
kept = client.get_prompt("none", fallback="as it was", cache_ttl_seconds=0, max_retries=0)


@observe(as_type="generation")
def ask(question):
    client.update_current_generation(prompt=prompt, model="gpt-5-mini", usage_details={"input": 3, "output": 2})
    return question.upper()


@observe
def work(question):
    client.score_current_trace(name="helpful", value=0.5)
    client.score_current_span(name="polite", value=1, data_type="BOOLEAN")
    return ask(question), client.get_current_trace_id()


answer, trace_id = work("why?")
client.create_score(name="mood", value="calm", trace_id=trace_id, comment="c")
client.create_dataset(name="capitals")
for country, capital in {"France": "Paris", "Italy": "Rome"}.items():
    client.create_dataset_item(dataset_name="capitals", input=country, expected_output=capital)
dataset = client.get_dataset("capitals")
result = dataset.run_experiment(
    name="guess",
    task=lambda *, item, **_: "Paris",
    evaluators=[
        lambda *, output, expected_output, **_: Evaluation(name="exact", value=float(output == expected_output))
    ],
)
client.flush()
observations = client.api.observations.get_many(trace_id=trace_id, fields="basic,io,usage,prompt").data
found = {one.name: one for one in observations}
report(
    checked=client.auth_check(),
    prompt=[prompt.version, prompt.compile(how="shortly", history=[{"role": "user", "content": "hi"}]), prompt.config],
    labels=[sorted(blue.labels), blue.version, blue.tags, kept.prompt],
    trace=[sorted(found), found["ask"].output, found["ask"].usage_details, found["ask"].prompt_name],
    scores=sorted([score.name, score.value] for score in client.api.scores.get_many(trace_id=trace_id).data),
    experiment=[[item.output, item.evaluations[0].value] for item in result.item_results],
)
