from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from texts import ADDRESS, KEY, MISSING, OTHER, PROMPT, SERVED, are_near, refused, report, status_of, texts, vectors

place = {"api_base": ADDRESS, "api_key": KEY, "max_retries": 0}
model = OpenAILike(model=SERVED, temperature=0, max_tokens=8, **place)
made = OpenAILikeEmbedding(model_name=SERVED, embed_batch_size=2, **place)
first, second = vectors(PROMPT, OTHER)
missing = OpenAILike(model=MISSING, **place)
report(
    completion=[model.complete(PROMPT).text] == texts(),
    stream=[[piece.delta for piece in model.stream_complete(PROMPT)]] != [[]]
    and "".join(piece.delta or "" for piece in model.stream_complete(PROMPT)) == texts()[0],
    embedding=are_near(made.get_query_embedding(PROMPT), first),
    several=all(map(are_near, made.get_text_embedding_batch([PROMPT, OTHER]), [first, second])),
    error=status_of(refused(lambda: missing.complete(PROMPT))),
)
