"""The losses of training, and how those of tokens become that of a step; no file here imports torch."""
