"""Driver of OpenVINO GenAI: its continuous batching with prefix cache, stepped in this process."""

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import driver


class Pipeline:
    """One model in this process, read from a GGUF file."""

    def load(self, folder: str, threads: int, dtype: str, weights: str = "f16", **_: Any) -> dict[str, Any]:
        """Convert once, import and load; `dtype` is the precision hint, `auto` the library's own choice."""
        import gguf_file
        import openvino_genai

        self.genai = openvino_genai
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = 1
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = 1024
        scheduler.max_num_seqs = 64
        properties: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
        if dtype != "auto":
            properties["INFERENCE_PRECISION_HINT"] = dtype
        path = gguf_file.converted(Path(folder), weights)
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(str(path), scheduler, "CPU", properties)
        self.requests = 0
        return {"version": openvino_genai.__version__, "dtype": "int8" if weights == "q8_0" else dtype}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        """All prompts at once, greedily, end of sequence ignored."""
        import numpy
        import openvino

        config = self.genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.min_new_tokens = tokens
        config.ignore_eos = True
        config.do_sample = False
        timeline = driver.Timeline(len(prompts), tokens, [os.getpid()])
        handles = []
        for prompt in prompts:
            self.requests += 1
            ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
            handles.append(self.pipeline.add_request(self.requests, ids, config))
        while self.pipeline.has_non_finished_requests():
            self.pipeline.step()
            for stream, handle in enumerate(handles):
                if handle.can_read():
                    timeline.token(stream, sum(len(output.generated_ids) for output in handle.read().values()))
        return timeline.result()


if __name__ == "__main__":
    pipeline = Pipeline()
    driver.serve({"load": pipeline.load, "generate": pipeline.generate})
