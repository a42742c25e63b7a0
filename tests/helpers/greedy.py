"""Decoding on an executor, alone or through the engine core, and by Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
import transformers

from engine.config import PoolConfig
from engine.core import CoreStats, EngineCore
from engine.request import Request, SamplingParams
from engine.step import Executor, Step, StepRow

TIE = 2e-4
"""fp32 logits move by about 4e-5 with the batch's shape; at smaller gaps of the top two either is right."""


@dataclass(frozen=True)
class Reference:
    """transformers' greedy tokens, and the gap of its top two logits at each."""

    tokens: list[int]
    gaps: list[float]

    def excuses(self, tokens: Sequence[int]) -> bool:
        """Whether `tokens` differ, and first differ where the top two logits tie; a true difference fails."""
        for index, (ours, theirs) in enumerate(zip(tokens, self.tokens, strict=True)):
            if ours != theirs:
                assert self.gaps[index] <= TIE, f"token {index} differs at a gap of {self.gaps[index]:.2g}"
                return True
        return False


def reference_model(folder: Path, dtype: torch.dtype) -> transformers.PreTrainedModel:
    """transformers' own implementation of the folder's model; it goes on after end-of-sequence."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def reference_greedy(model: transformers.PreTrainedModel, prompt: Sequence[int], count: int) -> Reference:
    """`count` greedy tokens by `generate`."""
    ids = torch.tensor([list(prompt)])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=count,
        do_sample=False,
        return_dict_in_generate=True,
        output_logits=True,
    )
    best = torch.stack(out.logits)[:, 0].double().topk(2).values
    return Reference(out.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist())


def decode_alone(executor: Executor, prompt: Sequence[int], count: int, *, block_size: int = 16) -> list[int]:
    """`count` greedy tokens: one whole prefill, then single steps, in blocks of descending order."""
    needed = -(-(len(prompt) + count) // block_size)
    blocks = tuple(range(needed, 0, -1))
    tokens, start = tuple(prompt), 0
    out: list[int] = []
    for index in range(count):
        row = StepRow("alone", tokens, start, blocks, True, index == 0, SamplingParams(), index)
        (token,) = executor.submit(Step(index, (row,))).result().tokens
        assert token is not None
        out.append(token)
        start += len(tokens)
        tokens = (token,)
    return out


def decode_through_core(
    executor: Executor,
    prompts: Sequence[Sequence[int]],
    sampling: Sequence[SamplingParams],
    *,
    pool: PoolConfig,
    num_blocks: int,
    at_once: int,
    eos_token_ids: frozenset[int] = frozenset(),
) -> tuple[list[list[int]], CoreStats]:
    """Every prompt's output, `at_once` requests in the engine at a time, blocks handed out in random order."""
    core = EngineCore(pool, num_blocks=num_blocks, max_len=4096, eos_token_ids=eos_token_ids, shuffle=Random(7))
    outputs: list[list[int]] = [[] for _ in prompts]
    waiting = list(range(len(prompts)))[::-1]
    unfinished = 0
    while waiting or unfinished:
        while waiting and unfinished < at_once:
            number = waiting.pop()
            core.add(Request(str(number), tuple(prompts[number]), sampling[number]), now=0.0)
            unfinished += 1
        step = core.next_step(now=0.0)
        assert step is not None
        for event in core.complete(step.id, executor.submit(step).result(), now=0.0):
            if event.token is not None:
                outputs[int(event.request_id)].append(event.token)
            unfinished -= event.finish_reason is not None
        core.check_invariants()
    return outputs, core.stats()
