"""What can be set about servers of vLLM."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

KV_TRANSFER = "kv_transfer_params"
"""The word in `vllm_takes` for servers with a connector."""
RANKS = (64, 128, 256, 320, 512)
"""Highest ranks of LoRA adapters that a server can be made for; the first is enough for most."""


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Settings of the servers behind one engine."""

    folder: Path
    """The model folder; its small files are read here, its weights by the servers."""
    model: str
    """What servers that we start call the model."""
    urls: tuple[str, ...] = ()
    """Servers that run elsewhere; empty = we start our own."""
    replicas: int = 1
    """How many we start."""
    command: str = "python3 -m vllm.entrypoints.openai.api_server"
    """How one is started, before its arguments; `{replica}` is its number from 0."""
    arguments: str = ""
    """Further arguments of the servers that we start; `{replica}` as above."""
    takes: frozenset[str] = frozenset()
    """Names of extra arguments of the servers' plug-ins, and `kv_transfer_params` where they have a connector."""
    key: str = ""
    """What the servers want as a bearer token; empty = nothing."""
    dtype: str = "auto"
    max_model_len: int = 0
    """Prompt and output together, in tokens; 0 = what the model was made for."""
    kv_memory: int = 0
    """Bytes for keys and values on one server; 0 = what vLLM takes by itself."""
    scheduling: Literal["fcfs", "priority"] = "fcfs"
    max_running: int = 64
    """Sequences that one server works on at the same time."""
    max_waiting: int = 1024
    """Requests that may wait beyond those that run; one more is refused with EngineBusy."""
    max_adapters: int = 32
    """Adapter versions that servers keep; the least recently used idle one makes room."""
    lora_rank: int = 8
    """The highest rank of adapters that servers that we start make room for, at the least."""

    @property
    def xargs(self) -> frozenset[str]:
        """Names of extra arguments that requests may carry."""
        return self.takes - {KV_TRANSFER}

    def command_line(self, replica: int, port: int) -> list[str]:
        """The words that start one server; raises ValueError when the settings have an open quote."""
        own = shlex.split(self.command.replace("{replica}", str(replica)))
        further = shlex.split(self.arguments.replace("{replica}", str(replica)))
        return [*own, *self._model_arguments(), "--host", "127.0.0.1", "--port", str(port), *further]

    def _model_arguments(self) -> list[str]:
        words = ["--model", str(self.folder), "--served-model-name", self.model]
        # Every request says all of its sampling, so the model's own proposals must not come on top.
        words += ["--generation-config", "vllm", "--enable-prompt-tokens-details"]
        # Requests carry grammars of llguidance, which only this compiler reads whole.
        words += ["--structured-outputs-config.backend", "guidance"]
        words += ["--scheduling-policy", self.scheduling, "--max-num-seqs", str(self.max_running)]
        words += ["--enable-lora", "--max-cpu-loras", str(self.max_adapters)]
        words += ["--max-lora-rank", str(next((rank for rank in RANKS if rank >= self.lora_rank), RANKS[-1]))]
        words += ["--dtype", self.dtype] if self.dtype != "auto" else []
        words += ["--kv-cache-memory-bytes", str(self.kv_memory)] if self.kv_memory else []
        words += ["--max-model-len", str(self.max_model_len)] if self.max_model_len else []
        return words
