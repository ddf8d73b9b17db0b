from langchain_openai import OpenAI, OpenAIEmbeddings
from texts import MISSING, OTHER, PROMPT, SERVED, are_near, refused, report, status_of, texts, vectors

model = OpenAI(model=SERVED, temperature=0, max_tokens=8, max_retries=0)
# By default texts are sent as ids of OpenAI's own vocabulary, which no other model reads.
made = OpenAIEmbeddings(model=SERVED, check_embedding_ctx_length=False)
first, second = vectors(PROMPT, OTHER)
report(
    completion=[model.invoke(PROMPT)] == texts(),
    stream="".join(model.stream(PROMPT)) == texts()[0],
    several=model.batch([PROMPT, OTHER]) == texts([PROMPT, OTHER]),
    embedding=are_near(made.embed_query(PROMPT), first)
    and all(map(are_near, made.embed_documents([PROMPT, OTHER]), [first, second])),
    error=status_of(refused(lambda: OpenAI(model=MISSING, max_retries=0).invoke(PROMPT))),
)
