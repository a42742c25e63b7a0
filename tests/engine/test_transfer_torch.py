"""KV that torch computed, moved: bit by bit, in every dtype, on one rank and two; then decoded behind it.

Two executors with a core each stand for the two sides of a split, here in one process, without a router.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from random import Random

import pytest
import torch
from helpers.greedy import decode_alone
from helpers.tiny_model import LLAMA, MISTRAL, OPT, write_tiny_model
from helpers.transfer import SECRET, SOON_S, TRANSPORTS, content

from engine.attention.torch import TorchAttention
from engine.config import PoolConfig
from engine.core import EngineCore
from engine.executors.torch import TorchExecutor
from engine.fleet.actions import prefill_half
from engine.request import Request, SamplingParams
from engine.shape import ModelShape
from engine.step import Step, StepRow
from engine.transfer.held import Held
from engine.transfer.layout import KvLayout, Transport
from engine.transfer.pages import HostPages
from engine.transfer.puller import Puller, PullJob, PullResult
from engine.transfer.source import KvServer

BLOCK = 16
NUM_BLOCKS = 80
OUTPUT = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("llama"))


def open_executor(folder: Path, dtype: str = "float64", tp: int = 1) -> TorchExecutor:
    return TorchExecutor(folder, dtype=dtype, tp=tp, num_blocks=NUM_BLOCKS, block_size=BLOCK, shared=True)


def pages_of(executor: TorchExecutor) -> HostPages:
    assert isinstance(executor.pages, HostPages)
    return executor.pages


def fill_with_nan(pages: HostPages) -> None:
    """All ones is NaN in every dtype."""
    for rank in range(pages.layout.ranks):
        pages.array(rank)[:] = 0xFF


class Side:
    """One instance of a split: executor, core, and the steps it made."""

    def __init__(self, executor: TorchExecutor, role: str, seed: int) -> None:
        self.executor = executor
        self.pages = pages_of(executor)
        pool = PoolConfig.model_validate({"role": role, "block_size": BLOCK, "token_budget": 48})
        # Blocks in any order: neither side's numbers are the other's.
        self.core = EngineCore(pool, num_blocks=NUM_BLOCKS, max_len=1024, shuffle=Random(seed))
        self.steps: list[Step] = []

    def run(self) -> dict[str, list[int]]:
        """Step until there is no work; the tokens of each request."""
        tokens: dict[str, list[int]] = {}
        while (step := self.core.next_step(0.0)) is not None:
            self.steps.append(step)
            for event in self.core.complete(step.id, self.executor.submit(step).result(), 0.0):
                assert event.token is not None
                tokens.setdefault(event.request_id, []).append(event.token)
            self.core.check_invariants()
        return tokens


class Split:
    """Prefill and decode, and the way between them."""

    def __init__(self, prefill: Side, decode: Side, transport: Transport, folder: Path) -> None:
        self.prefill, self.decode = prefill, decode
        self.held = Held(30.0)
        self.results: SimpleQueue[PullResult] = SimpleQueue()
        self.source = KvServer(
            self.held,
            prefill.pages,
            prefill.pages.layout,
            nonce="e" * 32,
            secret=SECRET,
            folder=folder,
            transport=transport,
            clock=time.monotonic,
        )
        self.puller = Puller(decode.pages, decode.pages.layout, secret=SECRET, done=self.results.put)

    def serve(self, request: Request) -> tuple[list[int], PullResult]:
        """The tokens of one request, and how its KV came."""
        name, prompt = request.id, len(request.prompt)
        prefill, decode = self.prefill, self.decode
        prefill.core.add(prefill_half(request), 0.0)
        [token] = prefill.run()[name]
        theirs = prefill.core.kept_blocks(name)
        self.held.keep(name, theirs, prompt, time.monotonic())
        cached = decode.core.reserve(request, 0.0)
        assert cached is not None
        ours = decode.core.reserved_blocks(name)
        self.puller.pull(PullJob(name, 1, self.source.peer, cached, prompt, ours))
        result = self.results.get(timeout=SOON_S)
        assert result.ok
        assert content(decode.pages, ours, 0, prompt) == content(prefill.pages, theirs, 0, prompt)
        decode.core.start_decode(name, token, 0.0)
        self.held.drop(name)
        prefill.core.release_kv(name, 0.0)
        tokens = [token, *decode.run()[name]]
        assert prefill.core.stats().blocks_used == decode.core.stats().blocks_used == 0
        return tokens, result

    def close(self) -> None:
        self.puller.close()
        self.source.close()


@contextmanager
def split(prefill: TorchExecutor, decode: TorchExecutor, transport: Transport, folder: Path) -> Iterator[Split]:
    for pages in (pages_of(prefill), pages_of(decode)):
        fill_with_nan(pages)
    opened = Split(Side(prefill, "prefill", 1), Side(decode, "decode", 2), transport, folder)
    try:
        yield opened
    finally:
        opened.close()


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(Random(seed).choices(range(3, 256), k=length))


def ask(name: str, prompt: Sequence[int], output: int = OUTPUT) -> Request:
    return Request(name, tuple(prompt), SamplingParams(max_tokens=output, ignore_eos=True))


@pytest.fixture(scope="module")
def pair(folder: Path) -> Iterator[tuple[TorchExecutor, TorchExecutor]]:
    with open_executor(folder) as one, open_executor(folder) as two:
        yield one, two


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_split_decodes_what_one_instance_does_and_moves_what_it_must(
    pair: tuple[TorchExecutor, TorchExecutor], folder: Path, tmp_path: Path, transport: Transport
) -> None:
    """Lengths around block boundaries; then prompts of which the decode side has blocks already."""
    shared = prompt_of(4 * BLOCK, seed=9)
    prompts = [prompt_of(n, seed=n) for n in (1, 15, 16, 17, 100, 333)]
    prompts += [(*shared, *prompt_of(n, seed=n)) for n in (30, 7, 40)]
    with TorchExecutor(folder, dtype="float64", num_blocks=NUM_BLOCKS, block_size=BLOCK) as colocated:
        assert colocated.pages is None
        expected = [decode_alone(colocated, prompt, OUTPUT) for prompt in prompts]
    # 2 layers, keys and values, 2 heads of 16 float64.
    token_bytes = 2 * 2 * 2 * 16 * 8
    with split(*pair, transport, tmp_path) as both:
        for number, (prompt, tokens) in enumerate(zip(prompts, expected, strict=True)):
            made = len(both.decode.steps)
            served, result = both.serve(ask(f"r{number}", prompt))
            assert served == tokens
            cached = 4 * BLOCK if number > 6 else 0
            assert result.bytes == (len(prompt) - cached) * token_bytes
            assert result.transport == transport
            [row] = both.decode.steps[made].rows
            assert (len(row.tokens), row.start, row.prefill) == (1, len(prompt), False)
        assert all(step.query_tokens == 1 for step in both.decode.steps)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("config", [MISTRAL, OPT], ids=lambda config: config["model_type"])
def test_other_families_do_too(tmp_path: Path, transport: Transport, config: dict[str, object]) -> None:
    """Sliding windows; heads that all have KV of their own."""
    folder = write_tiny_model(tmp_path / "model", config, seed=3)
    prompt = prompt_of(70)
    with open_executor(folder) as one, open_executor(folder) as two:
        expected = decode_alone(one, prompt, OUTPUT)
        with split(one, two, transport, tmp_path) as both:
            assert both.serve(ask("r", prompt))[0] == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kv_of_every_dtype_is_the_same_bits(
    folder: Path, tmp_path: Path, dtype: str, transport: Transport
) -> None:
    """`serve` compares. Equal bits and equal steps behind them give equal tokens, in any dtype."""
    prompt = prompt_of(37)
    with open_executor(folder, dtype) as one, open_executor(folder, dtype) as two:
        expected = decode_alone(one, prompt, OUTPUT)
        with split(one, two, transport, tmp_path) as both:
            tokens, result = both.serve(ask("r", prompt))
            assert tokens == expected
            assert result.bytes == 37 * 2 * 2 * 2 * 16 * torch.empty(0, dtype=getattr(torch, dtype)).itemsize


def test_two_ranks_move_the_kv_of_both_and_leave_nothing_open(folder: Path, tmp_path: Path) -> None:
    """The ranks above 0 are processes; rank 0's reads and writes their memory."""
    prompt = prompt_of(70)
    before = open_memory()
    with open_executor(folder) as alone:
        expected = decode_alone(alone, prompt, OUTPUT)
        with open_executor(folder, tp=2) as one, open_executor(folder, tp=2) as two:
            decode_alone(one, prompt, OUTPUT)
            # Each rank has one of the two heads: together they hold what one rank does, in blocks 6 to 1.
            for rank in (0, 1):
                whole, part = (
                    pages_of(executor).array(number) for executor, number in ((alone, 0), (one, rank))
                )
                theirs, ours = (
                    torch.from_numpy(array[:, :, 3:7].copy()).view(torch.float64)
                    for array in (whole[..., rank * 128 : (rank + 1) * 128], part)
                )
                torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
            for transport in TRANSPORTS:
                with split(one, two, transport, tmp_path) as both:
                    tokens, result = both.serve(ask("r", prompt))
                    assert tokens == expected
                    assert result.bytes == 70 * 2 * 2 * 2 * 16 * 8
    del alone, one, two, both, whole, part, theirs, ours
    assert open_memory() == before


def open_memory() -> int:
    """Descriptors of KV in this process."""
    gc.collect()
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("advise-kv" in str(link.readlink()) for link in links)


def test_ranks_that_differ_are_refused(folder: Path, tmp_path: Path) -> None:
    one = KvLayout(model="m", dtype="float64", block_size=BLOCK, layers=2, kv_heads=2, head_dim=16)
    with open_executor(folder) as executor:
        ours = pages_of(executor).layout
        assert (ours.layers, ours.kv_heads, ours.head_dim, ours.ranks) == (2, 2, 16, 1)
        assert ours.bytes_per_token == one.bytes_per_token
        assert len(ours.model) == 64
    other = write_tiny_model(tmp_path / "other", LLAMA | {"rope_theta": 20000.0})
    with open_executor(other) as executor:
        assert pages_of(executor).layout.model != ours.model, "another model of the same sizes"


SHAPE = ModelShape(layers=1, hidden=64, heads=2, kv_heads=2, head_dim=32, ffn=64, vocab=64, max_len=256)
LAYOUT = KvLayout(model="m", dtype="float64", block_size=BLOCK, layers=1, kv_heads=2, head_dim=32)


def test_kv_that_lands_where_a_decode_began_before_is_followed_by_zeros() -> None:
    """A decode has zeroed the rest of the block once; since then another request filled it, here with NaN.

    The next decode there does not zero it again: only a new block or a prefill makes it. So the pull must.
    """
    theirs, ours = HostPages.create(LAYOUT, 3), HostPages.create(LAYOUT, 3)
    memory = ours._memories[0].buffer
    pool = torch.frombuffer(memory, dtype=torch.float64)
    backend = TorchAttention(SHAPE, num_blocks=3, block_size=BLOCK, dtype=torch.float64, pool=pool)
    generator = torch.Generator().manual_seed(0)

    def decode(start: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        row = StepRow("r", (0,), start, (1,), True, False, SamplingParams())
        q, k, v = (torch.randn(1, 2, 32, generator=generator, dtype=torch.float64) for _ in range(3))
        return q, k, v, backend.attend(0, q, k, v, backend.plan([row]))

    decode(0)
    backend.pool.fill_(torch.nan)
    context = torch.randn(2, 5, 2, 32, generator=generator, dtype=torch.float64)
    fill_with_nan(theirs)
    theirs.array(0)[0, :, 2, :5] = context.flatten(2).numpy().view("u1")
    assert sum(ours.copy(theirs, [2], [1], 0, 5)) == 5 * LAYOUT.bytes_per_token
    q, k, v, out = decode(5)
    keys, values = (torch.cat((past, new)) for past, new in zip(context, (k, v), strict=True))
    weights = (torch.einsum("qhd,khd->hqk", q, keys) / 32**0.5).softmax(dim=-1)
    torch.testing.assert_close(out, torch.einsum("hqk,khd->qhd", weights, values))
