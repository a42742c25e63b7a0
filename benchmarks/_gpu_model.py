"""Whole models on the device: tokens beside transformers', and speed beside the device's limits."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import median

import torch
import transformers

from benchmarks.gpu import TINY, Setup
from engine.calibrate import build_step
from engine.executors.runner import DeviceParts
from engine.executors.torch import TorchExecutor
from engine.request import SamplingParams
from engine.shape import ModelShape
from engine.step import Step, StepRow
from engine.step_time.model import StepShape

BLOCK = 16
TIE = 1e-3  # float32 logits that are nearer than this may swap places with the order of a sum


class ReplayedCall:
    """Stands for a CUDA graph where there is none: it replays by calling."""

    def __init__(self, body: Callable[[], None]) -> None:
        body()
        self.replay = body


@contextmanager
def opened(setup: Setup, folder: Path, blocks: int, *, dtype: str, graphs: bool) -> Iterator[TorchExecutor]:
    """An executor of random or stored weights in `folder`; at toy size its kernels are interpreted."""
    parts = None
    if setup.toy:
        from engine.attention.triton import TritonAttention
        from engine.kernels.ops import TritonOps
        from engine.kernels.sampling import TritonChoice

        attention = partial(TritonAttention, device="cpu")
        parts = DeviceParts(TritonOps(), attention, TritonChoice(), ReplayedCall)
    with TorchExecutor(
        folder,
        dtype=dtype,
        device=setup.device.type,
        num_blocks=blocks,
        block_size=BLOCK,
        max_seqs=max(setup.batches),
        cuda_graphs=graphs,
        dummy=not (folder / "model.safetensors").exists(),
        parts=parts,
    ) as executor:
        yield executor
    gc.collect()
    if not setup.toy:
        torch.cuda.empty_cache()


def compare_tokens(setup: Setup) -> bool:
    """A random float32 model: each greedy token is transformers', or one that ties with it."""
    torch.manual_seed(setup.seed)
    folder = setup.scratch / "tiny"
    config = transformers.LlamaConfig(
        **(TINY if setup.toy else TINY | {"num_hidden_layers": 2, "head_dim": 64})
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(6 if weight.dim() > 1 else 1)  # logits far apart
    model.save_pretrained(folder)
    random, count = Random(setup.seed), 4 if setup.toy else 64
    prompts = [
        [random.randrange(3, 256) for _ in range(n)] for n in ((1, 17) if setup.toy else (1, 16, 17, 300))
    ]
    wrong = 0
    with opened(setup, folder, 64, dtype="float32", graphs=True) as executor:
        for prompt in prompts:
            tokens = greedy(executor, prompt, count)
            wrong += not follows(model, prompt, tokens)
    print(f"{len(prompts)} prompts, {count} tokens each: {wrong} differ")
    return not wrong


def greedy(executor: TorchExecutor, prompt: list[int], count: int) -> list[int]:
    """`count` tokens: a whole prefill, then single steps."""
    blocks = tuple(range(1, -(-(len(prompt) + count) // BLOCK) + 1))
    out: list[int] = []
    tokens, start = tuple(prompt), 0
    for index in range(count):
        row = StepRow("r", tokens, start, blocks, True, index == 0, SamplingParams(), index)
        (token,) = executor.submit(Step(index, (row,))).result().tokens
        out.append(token or 0)
        start, tokens = start + len(tokens), (token or 0,)
    return out


def follows(model: transformers.LlamaForCausalLM, prompt: list[int], tokens: list[int]) -> bool:
    """Whether each of `tokens` is, after those before it, the model's likeliest or ties with it."""
    with torch.no_grad():
        logits = model.double()(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    chosen = logits.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    return bool((logits.max(dim=-1).values - chosen <= TIE).all())


def measure_speed(setup: Setup) -> bool:
    """Print decode and prefill of random weights beside the limits, without graphs, and transformers."""
    folder = setup.scratch / "dummy"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(setup.config))
    bandwidth, rate = copy_bandwidth(setup), matrix_rate(setup)
    print(f"limits: copies {bandwidth / 1e9:,.1f} GB/s, matrix products {rate / 1e12:,.3f} TFLOP/s")
    blocks = (max(setup.batches) + 1) * (max(setup.context, setup.prompt) // BLOCK + 2)
    shape = ModelShape.from_config(setup.config)
    times: dict[bool, dict[int, float]] = {}
    for graphs in (True, False):
        with opened(setup, folder, blocks, dtype=setup.dtype, graphs=graphs) as executor:
            times[graphs] = {batch: decode_s(setup, executor, batch) for batch in setup.batches}
            if graphs:
                prefill_s = step_s(setup, executor, StepShape(((setup.prompt, 0),)))
    theirs, their_prefill_s = peer_times(setup)
    element = getattr(torch, setup.dtype).itemsize
    print(f"{'':20}{'ours ms':>10}{'of copies':>11}{'no graphs':>11}{'transformers':>14}")
    for batch in setup.batches:
        read = shape.weight_bytes(element) + batch * setup.context * shape.kv_bytes_per_token(element)
        ours, without, peer = times[True][batch], times[False][batch], theirs[batch]
        share = read / ours / bandwidth
        print(f"decode, batch {batch:<6}{ours * 1e3:10.2f}{share:11.1%}{without * 1e3:11.2f}{peer * 1e3:14.2f}")
    share = prefill_flops(shape, setup.prompt) / prefill_s / rate
    print(f"prefill {setup.prompt:<12}{prefill_s * 1e3:10.2f}{share:11.1%}{'':11}{their_prefill_s * 1e3:14.2f}")
    return True


def copy_bandwidth(setup: Setup) -> float:
    """Bytes a second that a copy reads and writes."""
    source = torch.zeros(setup.elements, device=setup.device)
    target = torch.empty_like(source)
    best = min(setup.seconds(lambda: target.copy_(source)) for _ in range(5))
    return 2 * source.numel() * source.element_size() / best


def matrix_rate(setup: Setup) -> float:
    """Floating-point operations a second of a large square product in the model's numbers."""
    side = 128 if setup.toy else 8192
    left = torch.ones(side, side, device=setup.device, dtype=getattr(torch, setup.dtype))
    best = min(setup.seconds(lambda: torch.mm(left, left)) for _ in range(5))
    return float(2 * side**3 / best)


def prefill_flops(shape: ModelShape, tokens: int) -> float:
    """Of a prompt without a context: every matrix for every token, half of all query-key pairs, one head."""
    pairs = tokens * (tokens + 1) / 2
    matrices = shape.layer_parameters() * tokens + shape.hidden * shape.vocab
    return 2 * (matrices + shape.layers * shape.attention_width * pairs)


def decode_s(setup: Setup, executor: TorchExecutor, batch: int) -> float:
    """Median seconds of a decode step."""
    return step_s(setup, executor, StepShape((), batch, batch * setup.context))


def step_s(setup: Setup, executor: TorchExecutor, shape: StepShape) -> float:
    """Median seconds of a step of this shape; it ends with its tokens on the host."""
    step = build_step(1, shape, BLOCK, executor.shape.vocab, Random(setup.seed))
    executor.submit(step).result()
    return median(setup.seconds(lambda: executor.submit(step).result()) for _ in range(setup.steps))


def peer_times(setup: Setup) -> tuple[dict[int, float], float]:
    """transformers' seconds of a decode step by batch, and of the prefill, on random weights."""
    config = transformers.LlamaConfig(**setup.config)
    dtype = getattr(torch, setup.dtype)
    with torch.device(setup.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    decodes = {}
    for batch in setup.batches:
        generate(setup, model, batch, setup.context, 2)
        decodes[batch] = median(generate(setup, model, batch, setup.context, setup.steps + 1)[1:])
    generate(setup, model, 1, setup.prompt, 1)
    prefill = min(generate(setup, model, 1, setup.prompt, 1)[0] for _ in range(3))
    del model
    gc.collect()
    return decodes, prefill


def generate(
    setup: Setup, model: transformers.PreTrainedModel, batch: int, prompt: int, tokens: int
) -> list[float]:
    """Seconds to the first token, then of each after it."""
    ids = torch.randint(3, int(str(setup.config["vocab_size"])), (batch, prompt), device=setup.device)
    times = [time.perf_counter()]

    def stamp(ids: torch.Tensor, _scores: object) -> torch.Tensor:
        ids[0, -1].item()  # the token is on the host, as ours is
        times.append(time.perf_counter())
        return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)

    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=tokens,
        do_sample=False,
        stopping_criteria=[stamp],
    )
    return [later - earlier for earlier, later in pairwise(times)]
