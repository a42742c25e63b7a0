"""transformers' continuous batching on the CPU; see `benchmarks.peers`."""

from __future__ import annotations

import json
import random
import sys
import time

started = time.perf_counter()

import torch  # noqa: E402 (imports count as time to ready)
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig  # noqa: E402

POOL_TOKENS = 32_768


def main() -> None:
    """Serve rows until stdin ends."""
    folder, dtype, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=getattr(torch, dtype), attn_implementation="sdpa"
    )
    model.eval()
    batching = ContinuousBatchingConfig(
        num_blocks=POOL_TOKENS // 256, max_batch_tokens=2048, max_requests_per_batch=64
    )
    numbers = random.Random(0)

    def serve(streams: int, prompt: int, output: int) -> float:
        prompts = [
            [numbers.randrange(3, model.config.vocab_size) for _ in range(prompt)] for _ in range(streams)
        ]
        generation = GenerationConfig(max_new_tokens=output, eos_token_id=-1, pad_token_id=0, do_sample=False)
        begun = time.perf_counter()
        answers = model.generate_batch(prompts, generation, batching, persistent_manager=True)
        seconds = time.perf_counter() - begun
        produced = sum(len(answer.generated_tokens) for answer in answers.values())
        if produced != streams * output:
            sys.exit(f"{produced} tokens came out, not {streams * output}")
        return seconds

    serve(32, 64, 4)
    print(json.dumps({"ready": time.perf_counter() - started}), flush=True)
    for line in sys.stdin:
        print(json.dumps({"seconds": serve(**json.loads(line))}), flush=True)


if __name__ == "__main__":
    main()
