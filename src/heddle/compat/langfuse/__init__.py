"""The public API of Langfuse as its SDKs use it every day, on heddle's prompts, feedback, calls and datasets."""
