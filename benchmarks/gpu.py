"""All that only a GPU can show, in one run: right results, speed beside limits and transformers, the loop.

    python -m benchmarks.gpu [--seed N]      on a machine with a CUDA GPU
    python -m benchmarks.gpu --toy           on a CPU: the same code at toy size, kernels under the interpreter

Sections: the kernels against float64 on fresh random inputs; greedy tokens against transformers'; an 8B model
of random weights, decodes as a share of the measured copy bandwidth and a prefill as a share of the measured
rate of matrix products, with and without CUDA graphs, beside transformers on the same machine; and calibrate,
analyze, launch, validate once, what was measured beside what was predicted. Exit 1 where a result is wrong. At
toy size the times mean nothing.

Targets on a GPU: 70 % of the copy bandwidth at batch 1 to 8, 50 % of the matrix products in prefill.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128_256,
    "max_position_embeddings": 8192,
    "rope_theta": 500_000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TINY = LLAMA_8B | {
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 256,
    "max_position_embeddings": 1024,
}


@dataclass(frozen=True, slots=True)
class Setup:
    """What this run measures on, and how large. `context`, `prompt`: tokens; `scratch`: a folder of its own."""

    device: torch.device
    dtype: str
    config: dict[str, object]
    context: int
    prompt: int
    batches: tuple[int, ...]
    steps: int
    elements: int  # of the buffers and matrices that the limits are measured with
    seed: int
    scratch: Path

    @property
    def toy(self) -> bool:
        """Whether this only shows that everything runs."""
        return self.device.type == "cpu"

    def seconds(self, run: Callable[[], object]) -> float:
        """Wall time of one call, the device's work included."""
        self._wait()
        started = time.perf_counter()
        run()
        self._wait()
        return time.perf_counter() - started

    def _wait(self) -> None:
        if not self.toy:
            torch.cuda.synchronize()


def setup(*, toy: bool, seed: int, scratch: Path) -> Setup:
    """The full size on the first GPU, or the toy size on the CPU."""
    if toy:
        return Setup(torch.device("cpu"), "float32", TINY, 32, 48, (1, 2), 2, 2**16, seed, scratch)
    sizes = (1, 2, 4, 8)
    return Setup(torch.device("cuda:0"), "bfloat16", LLAMA_8B, 512, 2048, sizes, 20, 2**29, seed, scratch)


def main() -> int:
    """Run every section; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--toy", action="store_true", help="on a CPU, at toy size")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32, help="of inputs and weights")
    options = parser.parse_args()
    if options.toy:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which is below
    elif not torch.cuda.is_available():
        print("no CUDA GPU here; --toy runs the same code on a CPU")
        return 0
    from benchmarks import _gpu_kernels, _gpu_loop, _gpu_model

    with tempfile.TemporaryDirectory(prefix="advise-gpu-") as folder:
        made = setup(toy=options.toy, seed=options.seed, scratch=Path(folder))
        name = "CPU, toy size" if made.toy else torch.cuda.get_device_name(made.device)
        print(f"{name}, torch {torch.__version__}, seed {options.seed}")
        right = True
        for title, section in (
            ("kernels against float64", _gpu_kernels.compare_kernels),
            ("greedy tokens against transformers", _gpu_model.compare_tokens),
            ("speed", _gpu_model.measure_speed),
            ("calibrate, analyze, launch, validate", _gpu_loop.run_loop),
        ):
            print(f"-- {title}", flush=True)
            right &= section(made)
    print("right" if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
