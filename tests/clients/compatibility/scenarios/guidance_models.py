import guidance
from guidance import assistant, gen, user
from weather import MISSING, QUESTION, SERVED, refused, report, status_of


def ask(model: str) -> str:
    lm = guidance.models.OpenAI(model, echo=False, max_retries=0)
    with user():
        lm += QUESTION
    with assistant():
        lm += gen("answer")
    return lm["answer"]


report(answer=lambda: ask(SERVED), error=lambda: status_of(refused(lambda: ask(MISSING))))
