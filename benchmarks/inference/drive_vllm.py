"""Driver of vLLM on CPU: its own server as a child process, token ids in and out over `/v1/completions`, streamed.

Only the server's processes count for CPU and memory; this one only reads lines.
"""

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver

START_SECONDS = 400
PARENT_DEATH_SIGNAL = 1


def end_with_parent() -> None:
    """On Linux the kernel ends this process with its parent."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGTERM)


class Server:
    """One vLLM server for one model."""

    def load(self, folder: str, dtype: str, cache: str, **_: Any) -> dict[str, Any]:
        """Start it and wait until it is healthy; it decides about threads itself (one core stays for its server)."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": cache,
        }
        # Its launcher looks up a distribution name that the CPU package does not have; the module works.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", folder, "--served-model-name", "model", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--max-model-len", "2048", "--max-num-seqs", "64", "--dtype", dtype]
        self.process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent)
        deadline = time.monotonic() + START_SECONDS
        while not self.healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise RuntimeError(f"the server did not become healthy (exit code {self.process.poll()})")
            time.sleep(0.2)
        return {"version": self.version(), "dtype": dtype}

    def healthy(self) -> bool:
        """True when `/health` answers 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def version(self) -> str:
        """As the server tells it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/version", timeout=5) as answer:
            return str(json.loads(answer.read())["version"])

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """All prompts at once, each on a connection of its own, greedily, end of sequence ignored."""
        timeline = driver.Timeline(len(prompts), tokens, driver.family(self.process.pid))
        asyncio.run(self.all_streams(prompts, tokens, timeline))
        return timeline.result()

    async def all_streams(self, prompts: list[list[int]], tokens: int, timeline: driver.Timeline) -> None:
        await asyncio.gather(
            *(self.one_stream(number, prompt, tokens, timeline) for number, prompt in enumerate(prompts))
        )

    async def one_stream(self, number: int, prompt: list[int], tokens: int, timeline: driver.Timeline) -> None:
        """Send one request and count the token ids of each event."""
        body = {
            "model": "model",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }
        data = json.dumps(body).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(f"{head}Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode() + data)
        status = (await reader.readline()).split()[1]
        if status != b"200":
            raise RuntimeError((await reader.read()).decode(errors="replace")[-300:])
        async for line in reader:
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(str(event["error"]))
                ids = [token for choice in event["choices"] for token in choice.get("token_ids") or ()]
                if ids:
                    timeline.token(number, len(ids))
        writer.close()

    def processes(self) -> list[int]:
        """The server and its children."""
        return driver.family(self.process.pid)

    def stop(self) -> None:
        """SIGTERM, which also ends its children."""
        self.process.terminate()
        self.process.wait(30)


if __name__ == "__main__":
    server = Server()
    handlers = {"load": server.load, "generate": server.generate, "processes": server.processes, "stop": server.stop}
    driver.serve(handlers)
