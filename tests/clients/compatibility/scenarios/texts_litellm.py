import litellm
from texts import MISSING, OPTIONS, OTHER, PROMPT, SERVED, are_near, refused, report, status_of, texts, vectors

named = {"model": f"text-completion-openai/{SERVED}", "prompt": PROMPT, **OPTIONS}
one = litellm.text_completion(**named)
pieces = [chunk.choices[0].text or "" for chunk in litellm.text_completion(**named, stream=True)]
found = litellm.embedding(model=f"openai/{SERVED}", input=[PROMPT, OTHER])
report(
    completion=[one.choices[0].text] == texts(),
    stream="".join(pieces) == texts()[0],
    embedding=all(
        are_near(entry["embedding"], wanted) for entry, wanted in zip(found.data, vectors(PROMPT, OTHER), strict=True)
    ),
    error=status_of(refused(lambda: litellm.embedding(model=f"openai/{MISSING}", input=[PROMPT], max_retries=0))),
)
