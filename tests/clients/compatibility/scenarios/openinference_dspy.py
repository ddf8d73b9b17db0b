import dspy
from openinference.instrumentation import using_attributes
from openinference.instrumentation.dspy import DSPyInstrumentor
from weather import MISSING, MODEL, QUESTION, THREAD, USER, finish, refused, tracing

provider = tracing()
DSPyInstrumentor().instrument(tracer_provider=provider)
ask = dspy.Predict("question -> answer")
with using_attributes(session_id=THREAD, user_id=USER):
    with dspy.context(lm=dspy.LM(f"openai/{MODEL}", cache=False, num_retries=0)):
        ask(question=QUESTION)
    with dspy.context(lm=dspy.LM(f"openai/{MISSING}", cache=False, num_retries=0)):
        refused(lambda: ask(question=QUESTION))
finish(provider)
