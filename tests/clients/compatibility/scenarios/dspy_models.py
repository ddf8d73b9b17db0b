import dspy
from weather import MISSING, QUESTION, SERVED, refused, report, status_of

dspy.configure(lm=dspy.LM(f"openai/{SERVED}", cache=False, num_retries=0))
lost = dspy.LM(f"openai/{MISSING}", cache=False, num_retries=0)
report(
    answer=lambda: dspy.Predict("question -> answer")(question=QUESTION).answer,
    error=lambda: status_of(refused(lambda: lost(QUESTION))),
)
