"""The /v2 families of evaluation: thin layers over objects and calls, so that what SDKs write is read here.

Contract: trace-evals, sections 1 to 4.
"""
