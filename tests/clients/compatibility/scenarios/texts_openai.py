from openai import OpenAI
from texts import MISSING, OPTIONS, OTHER, PROMPT, SERVED, are_near, post, refused, report, status_of, texts, vectors

client = OpenAI(max_retries=0)
create = client.completions.create
one = create(model=SERVED, prompt=PROMPT, **OPTIONS)
pieces = [chunk.choices[0].text for chunk in create(model=SERVED, prompt=PROMPT, stream=True, **OPTIONS)]
several = create(model=SERVED, prompt=[PROMPT, OTHER], **OPTIONS)
scored = create(model=SERVED, prompt=PROMPT, echo=True, logprobs=2, **OPTIONS).choices[0]
raw = post("/completions", prompt=PROMPT, echo=True, logprobs=2, **OPTIONS)["choices"][0]["logprobs"]

found = client.embeddings.create(model=SERVED, input=[PROMPT, OTHER])
first, second = vectors(PROMPT, OTHER)
short = client.embeddings.create(model=SERVED, input=PROMPT, dimensions=8).data[0].embedding
report(
    completion=[one.choices[0].text] == texts(),
    stream="".join(pieces) == one.choices[0].text and len([piece for piece in pieces if piece]) > 1,
    several=[choice.text for choice in several.choices] == texts([PROMPT, OTHER]),
    logprobs=scored.logprobs.tokens == raw["tokens"] and scored.text.startswith(PROMPT),
    embedding=are_near(found.data[0].embedding, first) and are_near(found.data[1].embedding, second),
    dimensions=len(short),
    usage=found.usage.prompt_tokens,
    error=status_of(refused(lambda: client.embeddings.create(model=MISSING, input=PROMPT))),
    suffix=status_of(refused(lambda: create(model=SERVED, prompt=PROMPT, suffix="end", **OPTIONS))),
)
