"""The engine core: requests in, steps out, results in, tokens out. No clock, no IO, no torch.

A driver (a thread on the wall clock, or the simulator on a virtual one) calls

    add / abort  ->  next_step  ->  (an executor runs the Step)  ->  complete or fail  ->  events for clients

and passes `now` in seconds of its own clock. One step is in flight at a time. An abort at any moment ends the
request for its client at once, while its blocks stay held until the step in flight is done with them. Single
owner: only one thread may call.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from engine.config import PoolConfig
from engine.errors import InputError
from engine.invariants import InvariantError, require
from engine.kv.cache import KVCache
from engine.policy import policy_for
from engine.request import Request, Status
from engine.scheduler import Scheduler, Work
from engine.sequence import Sequence
from engine.step import Step, StepResult, StepRow

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One output token of a request, or its end without one (`token` None: aborted or failed).

    `index` counts output tokens from 0. `cached_tokens` is the prefix hit at the request's first admission,
    `queued_s` the wait before it. `at` is the driver's clock; both in seconds.
    """

    request_id: str
    token: int | None
    index: int
    finish_reason: FinishReason | None
    cached_tokens: int
    at: float
    queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CoreStats:
    """Counters and gauges. Blocks: free + cached + used = total; cached means published and unreferenced.

    Prefix tokens are counted once a request, at its first admission: `prefix_hit_tokens` of
    `prefix_query_tokens` prompt tokens came from the cache.
    """

    waiting: int
    running: int
    blocks_total: int
    blocks_free: int
    blocks_cached: int
    blocks_used: int
    prefix_query_tokens: int
    prefix_hit_tokens: int
    preemptions: int
    finished: int
    aborted: int
    failed: int


@dataclass(frozen=True, slots=True)
class _Flight:
    step_id: int
    work: Work


class EngineCore:
    """One instance: `num_blocks` KV blocks (the trash block 0 included), contexts of up to `max_len` tokens."""

    def __init__(
        self,
        pool: PoolConfig,
        *,
        num_blocks: int,
        max_len: int,
        eos_token_ids: frozenset[int] = frozenset(),
        max_preemptions: int = 3,
        shuffle: Random | None = None,
    ) -> None:
        self._cache = KVCache(num_blocks, pool.block_size, prefix_cache=pool.prefix_cache, shuffle=shuffle)
        policy = policy_for(pool.queue_policy)
        self._scheduler = Scheduler(pool, self._cache, policy, max_preemptions)
        self._max_len = max_len
        self._eos = eos_token_ids
        self._flight: _Flight | None = None
        self._steps = 0
        self._ended = {Status.FINISHED: 0, Status.ABORTED: 0, Status.FAILED: 0}

    @property
    def has_work(self) -> bool:
        """Something waits, runs or is in flight."""
        return bool(self._scheduler.waiting or self._scheduler.running or self._flight)

    def add(self, request: Request, now: float) -> None:
        """Queue a request. Raises InputError for one that can never run here, or whose id is in use."""
        self._refuse_impossible(request)
        self._scheduler.waiting[request.id] = Sequence(request, now, self._cache.block_size)

    def abort(self, request_id: str, now: float) -> list[TokenEvent]:
        """End a request wherever it is. Unknown and ended ids are no-ops: aborts may come late or twice."""
        seq = self._find(request_id)
        return [self._end(seq, Status.ABORTED, "abort", now)] if seq else []

    def next_step(self, now: float) -> Step | None:
        """The next forward pass; None while one is in flight or when there is nothing to do."""
        if self._flight:
            return None
        work = self._scheduler.schedule(now)
        if not work:
            return None
        self._steps += 1
        step = Step(self._steps, tuple(self._row(seq, tokens) for seq, tokens in work))
        self._flight = _Flight(step.id, work)
        return step

    def complete(self, step_id: int, result: StepResult, now: float) -> list[TokenEvent]:
        """Take in the result of the step in flight; returns one event per sampled token, in row order."""
        work = self._retire(step_id)
        require(result.step_id == step_id, "the result is of another step")
        events = []
        for (seq, tokens), token in zip(work, result.tokens, strict=True):
            if seq.status.ended:
                continue
            seq.computed += tokens
            self._cache.publish(seq.table, seq.computed)
            if seq.computed == len(seq.tokens):
                if token is None:
                    raise InvariantError("a row to sample has no token")
                events.append(self._token(seq, token, now))
        return events

    def fail(self, step_id: int, now: float) -> list[TokenEvent]:
        """The step in flight raised: end its requests. Nothing that it computed is ever published."""
        work = self._retire(step_id)
        return [self._end(seq, Status.FAILED, "error", now) for seq, _ in work if not seq.status.ended]

    def decode_run(self, limit: int) -> int:
        """How many of the next `limit` steps are surely pure decodes of the requests running now.

        In them nothing is admitted or ends and blocks suffice, so that a simulator may jump over them. A
        lower bound; 0 while a step is in flight, where someone could be admitted, or where an end of sequence
        may come.
        """
        running = list(self._scheduler.running.values())
        if self._flight or not running or (self._scheduler.waiting and not self._scheduler.full):
            return 0
        for seq in running:
            if seq.status is not Status.DECODE or (self._eos and not seq.request.sampling.ignore_eos):
                return 0
            limit = min(limit, seq.request.sampling.max_tokens - seq.output_tokens - 1)
        while limit and self._blocks_within(running, limit) > self._cache.available:
            limit //= 2
        return limit

    def stats(self) -> CoreStats:
        """Counters and gauges of this moment."""
        scheduler, cache = self._scheduler, self._cache
        return CoreStats(
            waiting=len(scheduler.waiting),
            running=len(scheduler.running),
            blocks_total=cache.pool.total,
            blocks_free=cache.pool.free,
            blocks_cached=cache.tree.evictable,
            blocks_used=cache.pool.total - cache.available,
            prefix_query_tokens=scheduler.prefix_query_tokens,
            prefix_hit_tokens=scheduler.prefix_hit_tokens,
            preemptions=scheduler.preemptions,
            finished=self._ended[Status.FINISHED],
            aborted=self._ended[Status.ABORTED],
            failed=self._ended[Status.FAILED],
        )

    def check_invariants(self) -> None:
        """Everything below agrees, and the flight holds only requests that run or have ended."""
        self._scheduler.check_invariants()
        for seq, _ in self._flight.work if self._flight else ():
            require(seq.status is not Status.QUEUED, "a request was preempted in flight")

    def _refuse_impossible(self, request: Request) -> None:
        prompt, output = len(request.prompt), request.sampling.max_tokens
        where = f"request {request.id}"
        if not prompt or output < 1:
            raise InputError("a request needs at least one prompt token and max_tokens of 1", where=where)
        if self._find(request.id):
            raise InputError("a request with this id is already in the engine", where=where)
        if prompt + output > self._max_len:
            raise InputError(
                f"{prompt} prompt tokens + max_tokens {output} exceed the context of {self._max_len}",
                where=where,
                hint="shorten the prompt or lower max_tokens",
            )
        capacity = self._cache.pool.total * self._cache.block_size
        if self._cache.blocks_for(prompt + output - 1) > self._cache.pool.total:
            raise InputError(
                f"{prompt} prompt tokens + max_tokens {output} exceed the KV cache of {capacity} tokens",
                where=where,
                hint="shorten the prompt, lower max_tokens or raise kv_tokens in engine.yaml",
            )

    def _find(self, request_id: str) -> Sequence | None:
        return self._scheduler.running.get(request_id) or self._scheduler.waiting.get(request_id)

    def _row(self, seq: Sequence, tokens: int) -> StepRow:
        end = seq.computed + tokens
        return StepRow(
            request_id=seq.request.id,
            tokens=tuple(seq.tokens[seq.computed : end]),
            start=seq.computed,
            blocks=seq.table.blocks,
            sample=end == len(seq.tokens),
            prefill=seq.status is Status.PREFILL,
            sampling=seq.request.sampling,
            output_index=seq.output_tokens,
        )

    def _retire(self, step_id: int) -> Work:
        if self._flight is None or self._flight.step_id != step_id:
            raise InvariantError(f"step {step_id} is not in flight")
        work = self._flight.work
        self._flight = None
        self._cache.retire(step_id)
        return work

    def _token(self, seq: Sequence, token: int, now: float) -> TokenEvent:
        """Append a sampled token; ends the request on end-of-sequence or at its length."""
        sampling, index = seq.request.sampling, seq.output_tokens
        seq.tokens.append(token)
        stops = token in self._eos and not sampling.ignore_eos and index >= sampling.min_tokens
        if stops or index + 1 == sampling.max_tokens:
            return self._end(seq, Status.FINISHED, "stop" if stops else "length", now, token)
        if seq.status is Status.PREFILL:
            seq.move(Status.DECODE)
        return _event(seq, token, None, now)

    def _end(
        self, seq: Sequence, status: Status, reason: FinishReason, now: float, token: int | None = None
    ) -> TokenEvent:
        # A step in flight may still read and write the blocks.
        self._scheduler.remove(seq, status, after=self._flight.step_id if self._flight else None)
        self._ended[status] += 1
        return _event(seq, token, reason, now)

    def _blocks_within(self, running: list[Sequence], steps: int) -> int:
        """Upper bound of the blocks that `steps` decodes of each of `running` make unavailable.

        A page that fills up may prove published already; referencing it holds a block beside the one that
        grew.
        """
        total = 0
        for seq in running:
            computed = seq.computed + steps
            total += max(0, self._cache.blocks_for(computed) - len(seq.table.blocks))
            total += computed // self._cache.block_size - seq.computed // self._cache.block_size
        return total


def _event(seq: Sequence, token: int | None, reason: FinishReason | None, now: float) -> TokenEvent:
    return TokenEvent(
        request_id=seq.request.id,
        token=token,
        index=seq.output_tokens - (token is not None),
        finish_reason=reason,
        cached_tokens=seq.cached_tokens,
        at=now,
        queued_s=(now if seq.admitted_s is None else seq.admitted_s) - seq.arrival_s,
    )
