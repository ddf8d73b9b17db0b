import asyncio

from openai import OpenAI
from ragas.embeddings import OpenAIEmbeddings
from ragas.metrics.collections import SemanticSimilarity
from texts import OTHER, PROMPT, SERVED, are_near, cosine, report, vectors

made = OpenAIEmbeddings(client=OpenAI(max_retries=0), model=SERVED)
similarity = SemanticSimilarity(embeddings=made)


async def score(answer: str) -> float:
    """How near an answer is to the reference."""
    return (await similarity.ascore(reference=PROMPT, response=answer)).value


first, second = vectors(PROMPT, OTHER)
report(
    embedding=are_near(made.embed_text(PROMPT), first),
    same=round(asyncio.run(score(PROMPT)), 4),
    other=abs(asyncio.run(score(OTHER)) - cosine(first, second)) < 1e-4,
)
