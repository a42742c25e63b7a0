"""What the replay client reaches here: requests/s and chunks/s against a server that computes nothing.

Two ladders of rising rates, each climbed until a rung does not hold: answers of one token at once, and streams
of paced chunks. A rung holds when every request came back whole, its sends were at most 5 ms late (P99) and its
chunks came as fast as they were due. Judged are the requests sent after the streams have built up. What is
measured is the real client and replay; the null server has a process of its own and shares the cores. Measures
now, remembers nothing.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import msgspec
import numpy as np
from pydantic import Field

from advisor.validation.client import body_of, open_client
from advisor.validation.loop import loop_kind, new_event_loop, run
from advisor.validation.null_server import MODEL, Pace, null_server
from advisor.validation.record import Record
from advisor.validation.replay import Due, replay
from advisor.workload.model import Report
from engine.host import usable_cores

LAG_LIMIT_S = 0.005  # of the P99: what the send_lag gate calls green under any target
GREEN_SHARE = 0.5  # of the roofline, that a replay may ask for
_PROMPT = 200  # tokens of a request
_KEPT = 0.98  # of the chunks that are due in the judged time, that must have come
_FULL = 0.9  # of a core: what a process that is at its limit uses


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rates to try, requests/s, in rising order; each for `judged_s` after the streams have built up."""

    rates: tuple[int, ...]
    judged_s: float
    tokens: int = 1
    gap_s: float = 0.0

    @property
    def stream_s(self) -> float:
        """How long an answer takes."""
        return self.tokens * self.gap_s


REQUESTS = Ladder((300, 600, 1200, 2400, 4800), judged_s=1.0)
CHUNKS = Ladder((160, 320, 480, 640, 960), judged_s=1.0, tokens=64, gap_s=0.025)
QUICK_REQUESTS = Ladder((300, 1200), judged_s=0.7)
QUICK_CHUNKS = Ladder((320, 1280), judged_s=0.7, tokens=16, gap_s=0.025)


class Rung(Report):
    """One rate that was tried."""

    requests_per_s: float = Field(description="sent in the judged time")
    chunks_per_s: float = Field(description="read in the judged time")
    streams: float = Field(description="open at once, mean")
    lag_p99_s: float | None = Field(description="P99 of send minus due; null where a request was not sent")
    client_cpu: float = Field(description="CPU time of the client's process over wall time; 1 is a whole core")
    server_cpu: float = Field(description="the same of the null server's")
    held: bool


class Roofline(Report):
    """What one client process reaches here; 0 where not even the lowest rung held."""

    requests_per_s: float = Field(description="the largest rate of answers of one token that held")
    chunks_per_s: float = Field(description="the largest rate of paced chunks that held")
    lag_limit_s: float = Field(LAG_LIMIT_S, description="what send lag P99 may be")
    cores: int = Field(description="cores that client and null server share")
    loop: str = Field(description="kind of event loop: uvloop or asyncio")
    bound_by: str = Field(description="what ended the ladder of chunks")
    request_rungs: tuple[Rung, ...]
    chunk_rungs: tuple[Rung, ...]

    def share(self, requests_per_s: float, chunks_per_s: float) -> float:
        """What share of the client a replay asks for that sends and reads so much; GREEN_SHARE is safe."""
        if not self.requests_per_s or not self.chunks_per_s:
            return float("inf")
        return requests_per_s / self.requests_per_s + chunks_per_s / self.chunks_per_s


def measure_client(*, quick: bool = False, say: Callable[[str], None] = lambda _: None) -> Roofline:
    """Climb both ladders: about half a minute, `quick` about 5 s. `say` is told of each rung.

    Runs event loops of its own; from a coroutine, call it with `asyncio.to_thread`.
    """
    requests, chunks = (QUICK_REQUESTS, QUICK_CHUNKS) if quick else (REQUESTS, CHUNKS)
    return climb(requests, chunks, say)


def climb(requests: Ladder, chunks: Ladder, say: Callable[[str], None] = lambda _: None) -> Roofline:
    """The roofline that these ladders show."""
    request_rungs, chunk_rungs = (_climb(ladder, say) for ladder in (requests, chunks))
    loop = new_event_loop()
    loop.close()
    return Roofline(
        requests_per_s=max((rung.requests_per_s for rung in request_rungs if rung.held), default=0.0),
        chunks_per_s=max((rung.chunks_per_s for rung in chunk_rungs if rung.held), default=0.0),
        cores=usable_cores(),
        loop=loop_kind(loop),
        bound_by=_bound_by(chunk_rungs[-1], usable_cores()),
        request_rungs=request_rungs,
        chunk_rungs=chunk_rungs,
    )


def lines(roofline: Roofline) -> list[str]:
    """The roofline as text, one string a line."""
    process = f"one process, {roofline.loop}, {roofline.cores} cores shared with the null server"
    limit = f"send lag P99 <= {roofline.lag_limit_s * 1e3:.0f} ms"
    return [
        f"client: {roofline.requests_per_s:,.0f} requests/s and {roofline.chunks_per_s:,.0f} chunks/s "
        f"at {limit}",
        f"        ({process})",
        *(f"  {told(rung)}" for rung in (*roofline.request_rungs, *roofline.chunk_rungs)),
        f"bound by {roofline.bound_by}",
        f"a replay should ask for at most {GREEN_SHARE:.0%} of it: "
        f"{GREEN_SHARE * roofline.requests_per_s:,.0f} requests/s, "
        f"or {GREEN_SHARE * roofline.chunks_per_s:,.0f} chunks/s",
    ]


def told(rung: Rung) -> str:
    """One rung in words."""
    lag = "not all sent" if rung.lag_p99_s is None else f"lag P99 {rung.lag_p99_s * 1e3:.2f} ms"
    return (
        f"{rung.requests_per_s:6,.0f} requests/s {rung.chunks_per_s:7,.0f} chunks/s "
        f"{rung.streams:5,.0f} streams: {lag}, "
        f"client {rung.client_cpu:.0%} of a core, server {rung.server_cpu:.0%}"
        f"{'' if rung.held else '  not held'}"
    )


def _climb(ladder: Ladder, say: Callable[[str], None]) -> tuple[Rung, ...]:
    rungs: list[Rung] = []
    with null_server(Pace(ladder.gap_s, ladder.gap_s)) as url:
        for rate in ladder.rates:
            rung = _rung(url, ladder, rate)
            if not rung.held:
                rung = _rung(url, ladder, rate)  # once more: something else may have wanted the cores
            say(told(rung))
            rungs.append(rung)
            if not rung.held:
                break
    return tuple(rungs)


def _rung(url: str, ladder: Ladder, rate: int) -> Rung:
    """One rate. Poisson arrivals: at equal distances the tokens of all streams would fall together."""
    seconds = ladder.stream_s + ladder.judged_s
    arrivals = np.cumsum(np.random.default_rng(rate).exponential(size=round(rate * seconds)))
    body = body_of(MODEL, list(range(_PROMPT)), ladder.tokens)
    schedule = [
        Due(i, float(at_s), body, _PROMPT, ladder.tokens)
        for i, at_s in enumerate(arrivals * (seconds / arrivals[-1]))
    ]

    async def inside() -> tuple[Record, ...]:
        async with open_client(url, timeout_s=10.0 + seconds) as client:
            return (await replay(schedule, client, tick=lambda _: None)).records

    server_s, client_s, began_s = _cpu_s(url), time.process_time(), time.monotonic()
    records = run(inside())
    wall_s = time.monotonic() - began_s
    client_s, server_s = time.process_time() - client_s, _cpu_s(url) - server_s
    return judged(ladder, records, client_s / wall_s, server_s / wall_s)


def judged(ladder: Ladder, records: Sequence[Record], client_cpu: float, server_cpu: float) -> Rung:
    """The rung that these records show."""
    begin_s, judged_s = ladder.stream_s, ladder.judged_s
    end_s = begin_s + judged_s
    sent = [record for record in records if begin_s <= record.t_sched <= end_s]
    lags = [record.t_send - record.t_due for record in sent if record.t_send is not None]
    lag = float(np.percentile(lags, 99)) if lags and len(lags) == len(sent) else None
    come = sum(begin_s <= stamp <= end_s for record in records for stamp in record.t_chunk)
    # Each chunk was due its time after the request was due, whenever that was sent.
    due = sum(
        begin_s <= record.t_due + (i + 1) * ladder.gap_s <= end_s
        for record in records
        for i in range(ladder.tokens)
    )
    whole = all(record.status == "ok" for record in records)
    return Rung(
        requests_per_s=len(lags) / judged_s,
        chunks_per_s=come / judged_s,
        streams=sum(_inside(record, begin_s, end_s) for record in records) / judged_s,
        lag_p99_s=lag,
        client_cpu=client_cpu,
        server_cpu=server_cpu,
        held=whole and lag is not None and lag <= LAG_LIMIT_S and come >= _KEPT * due,
    )


def _inside(record: Record, begin_s: float, end_s: float) -> float:
    """How long the request was under way in that time, seconds."""
    if record.t_send is None or record.t_done is None:
        return 0.0
    return max(0.0, min(record.t_done, end_s) - max(record.t_send, begin_s))


def _bound_by(last: Rung, cores: int) -> str:
    if last.held:
        return "nothing yet: the ladder ends there"
    if cores < 2:
        return "this machine's one core, which client and null server share"
    if last.client_cpu >= _FULL:
        return "the client's core"
    if last.server_cpu >= _FULL:
        return "the null server's core"
    return "this machine: neither client nor null server had a core to itself"


def _cpu_s(url: str) -> float:
    """CPU seconds that the null server has used."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
    connection.request("GET", "/health")
    answer = msgspec.json.decode(connection.getresponse().read(), type=dict[str, str | float])
    connection.close()
    return float(answer["cpu_s"])
