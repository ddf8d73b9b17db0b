"""Servers of vLLM as the engine: heddle's own processes, or ones that run elsewhere, several of them as one."""
