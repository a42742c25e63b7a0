"""Greedy tokens of a real split, processes and all, against the same model colocated in this process.

float64, so that tokens are equal, not nearly; the reference is transformers'.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest
import torch
from helpers.faults_fleets import tiny_folder
from helpers.greedy import reference_greedy, reference_model
from helpers.server import client, eventually, metrics, step_lines
from helpers.tiny_model import LLAMA

from advisor.deploy.local import RunningEngine, start_engine
from engine.config import EngineConfig, ModelConfig, PoolConfig, RouterConfig, ServerConfig

BLOCK = 16
OUTPUT = 24
Transport = Literal["shared_memory", "tcp"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    """Around the block boundary, with shared prefixes, one twice, and one longer than the token budget."""
    random = Random(5)
    system = [random.randrange(3, 256) for _ in range(3 * BLOCK)]
    shared = [system + [random.randrange(3, 256) for _ in range(n)] for n in (1, BLOCK - 1, BLOCK, BLOCK + 1)]
    alone = [[random.randrange(3, 256) for _ in range(n)] for n in (1, BLOCK, 100, 150)]
    return [*shared, *alone, system, list(shared[3])]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    model = reference_model(folder, torch.float64)
    return [reference_greedy(model, prompt, OUTPUT).tokens for prompt in prompts]


def split(
    folder: Path, *, prefill: int = 1, bypass: bool = False, transport: Transport, log: Path | None = None
) -> RunningEngine:
    """1P1D or 2P1D on the cores there are; three instances on two cores prove tokens, not speed."""
    common: dict[str, Any] = {"block_size": BLOCK, "token_budget": 64, "kv_tokens": 2048}
    config = EngineConfig(
        pools=(PoolConfig(role="prefill", count=prefill, **common), PoolConfig(role="decode", **common)),
        router=RouterConfig(bypass=bypass, transport=transport, policy="prefix_affinity"),
        model=ModelConfig(name="tiny", path=str(folder), dtype="float64"),
        server=ServerConfig(port=0),
    )
    return start_engine(config, step_log=log, oversubscribe=prefill > 1)


def ask(engine: RunningEngine, prompt: Sequence[int]) -> list[int]:
    body = {
        "prompt": prompt,
        "max_tokens": OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    with client(engine) as http:
        answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    ids: list[int] = answer.json()["choices"][0]["token_ids"]
    return ids


def answers(engine: RunningEngine, prompts: list[list[int]]) -> Iterator[list[int]]:
    """All at once, then all again one by one: with cached prefixes on both sides."""
    with ThreadPoolExecutor(len(prompts)) as threads:
        yield from threads.map(lambda prompt: ask(engine, prompt), prompts)
    for prompt in prompts:
        yield ask(engine, prompt)


def logprobs_of(folder: Path, prompt: list[int], tokens: list[int]) -> list[float]:
    """transformers' log-softmax of each token."""
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.no_grad():
        logits = reference_model(folder, torch.float64)(ids).logits[0, len(prompt) - 1 : -1]
    scores = torch.log_softmax(logits.double(), -1)
    return [float(row[token]) for row, token in zip(scores, tokens, strict=True)]


def kv_bytes_per_token(elements: int) -> int:
    return 2 * LLAMA["num_hidden_layers"] * LLAMA["num_key_value_heads"] * LLAMA["head_dim"] * elements


def test_one_to_one_over_shared_memory(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    log = tmp_path / "steps.jsonl"
    with split(folder, transport="shared_memory", log=log) as engine, client(engine) as http:
        assert engine.info.transport == "shared_memory"
        assert list(answers(engine, prompts)) == expected * 2
        eventually(lambda: metrics(http)["advise_leases"] == 0, "nothing is kept")
        values = metrics(http)
        assert values['advise_fleet_events_total{event="transferred"}'] == 2 * len(prompts)
        assert values['advise_fleet_events_total{event="requeued"}'] == 0
        moved = values['advise_kv_transfer_bytes_total{transport="shared_memory"}']
        body = {"prompt": prompts[0], "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 2}
        scored = http.post("/v1/completions", json=body).json()["choices"][0]["logprobs"]
    assert scored["token_logprobs"] == pytest.approx(
        logprobs_of(folder, prompts[0], expected[0][:8]), abs=1e-5
    )  # ours are float32
    _, prefilled = step_lines(Path(f"{log}.prefill-0"))
    _, decoded = step_lines(Path(f"{log}.decode-0"))
    rows = [row for step in decoded for row in step["rows"]]
    assert {new for _, new, _ in rows} == {1}  # of a transferred request the decode side computes no prompt
    first: dict[str, int] = {}
    for name, _, context in rows:
        first.setdefault(name, context)
    assert sorted(first.values()) == sorted([len(prompt) for prompt in prompts] * 2 + [len(prompts[0])])
    # Whole blocks that an earlier request left on the decode side did not come again.
    everything = 2 * sum(map(len, prompts)) * kv_bytes_per_token(8)
    assert 0 < moved < everything
    assert moved % kv_bytes_per_token(8) == 0
    assert all(not step["decode_rows"] for step in prefilled)


def test_bytes_moved_are_the_tokens_that_are_not_there(folder: Path) -> None:
    """tokens x KV bytes x (1 - share already held): the second prompt shares 3 blocks with the first."""
    prompt = [7 + n % 90 for n in range(3 * BLOCK + 5)]
    with split(folder, transport="tcp") as engine, client(engine) as http:

        def moved() -> float:
            return metrics(http)['advise_kv_transfer_bytes_total{transport="tcp"}']

        ask(engine, prompt)
        assert moved() == len(prompt) * kv_bytes_per_token(8)
        before = moved()
        ask(engine, [*prompt[: 3 * BLOCK], 200, 201, 202])
        assert moved() - before == 3 * kv_bytes_per_token(8)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["shared_memory", "tcp"])
@pytest.mark.parametrize("bypass", [False, True])
@pytest.mark.parametrize("prefill", [1, 2])
def test_greedy_tokens_are_those_of_transformers(
    folder: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    prefill: int,
    bypass: bool,
    transport: Transport,
) -> None:
    with split(folder, prefill=prefill, bypass=bypass, transport=transport) as engine, client(engine) as http:
        assert engine.info.transport == transport
        assert list(answers(engine, prompts)) == expected * 2
        values = metrics(http)
        assert values['advise_fleet_events_total{event="transferred"}'] > 0
        assert (values['advise_fleet_events_total{event="bypassed"}'] > 0) == bypass
