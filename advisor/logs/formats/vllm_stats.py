"""vLLM's statistics lines, which an engine logs every few seconds while it works: throughputs and cache hits.

Owns their sums. Everything is kept in counts, which may be added up over readers of parts of a log; it never
sees a request.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from advisor.logs.formats.vllm_lines import Message
from advisor.logs.trace import Totals

_INTERVAL_S = 10.0  # VLLM_LOG_STATS_INTERVAL as a rule
_WINDOW_REQUESTS = 1000  # over which an engine's hit rate goes (PrefixCachingMetrics in vllm/v1)
_LINE = re.compile(
    r"(?P<engine>(?:Engine \d{1,6}|\d{1,6} Engines Aggregated): )?"
    r"Avg prompt throughput: (?P<prompt>\d{1,9}\.\d) tokens/s, "
    r"Avg generation throughput: (?P<generation>\d{1,9}\.\d) tokens/s"
)
_HIT_RATE = re.compile(r"Prefix cache hit rate: (?:GPU: )?(?P<percent>\d{1,3}\.\d)")
_MOST_ENGINES = 100  # told apart; more prefixes than that are damage


class Statistics:
    """Sums of statistics lines; the interval between them is that of the sample's messages."""

    def __init__(self, counts: Counter[str], messages: Iterable[Message]) -> None:
        self._counts = counts
        self._engines: set[str] = set()
        self._newest: dict[str, int] = {}
        times = defaultdict(list)
        for message in messages:
            if match := _LINE.match(message.line, message.start):
                times[f"{message.writer}{match['engine']}"].append(message.second)
        gaps = [
            after - before
            for seen in times.values()
            for before, after in itertools.pairwise(seen)
            if after > before
        ]
        # Idle engines log nothing, so some gaps are longer than the interval; the usual one is not.
        self._interval_s = float(statistics.mode(gaps)) if len(gaps) > 2 else _INTERVAL_S

    def take(self, message: Message, seconds: int) -> bool:
        """Whether a message is statistics; then it is counted. `seconds` is its time."""
        match = _LINE.match(message.line, message.start)
        hit = (_HIT_RATE.search if match else _HIT_RATE.match)(message.line, message.start)
        if match is None and hit is None:
            return False
        engine = self._engine(message.writer, match["engine"] if match else None)
        prompt = _tenths(match["prompt"]) if match else 0
        self._counts["statistics"] += 1
        self._counts["statistics prompt"] += prompt
        self._counts["statistics generation"] += _tenths(match["generation"]) if match else 0
        self._keep("from", -seconds, 0)
        self._keep("until", seconds, 0)
        self._counts[f"prompt of {engine}"] += prompt
        if hit:
            permille = _tenths(hit["percent"])
            self._counts["statistics hits"] += prompt * permille
            self._counts["statistics with hits"] += prompt
            self._keep(f"hit rate of {engine}", seconds, permille)
        return True

    @property
    def seen(self) -> bool:
        """Whether there was any."""
        return self._counts["statistics"] > 0

    def totals(self, requests: int | None, model: str | None, counts_cached: bool | None) -> Totals:
        """What the lines add up to. `counts_cached`: whether the prompt throughput includes cached tokens."""
        if not self.seen:
            return Totals(source="lines of the web server", requests=requests, model=model)
        share = self._cached_share(requests)
        return Totals(
            source=f"engine statistics, throughput x {self._interval_s:g} s",
            requests=requests,
            prompt_tokens=self._sum("prompt") if counts_cached or share == 0 else None,
            output_tokens=self._sum("generation"),
            cached_share=share,
            span_s=self._span_s(),
            model=model,
        )

    def notes(self, totals: Totals) -> Iterator[str]:
        """What a reader of the sums must know."""
        if not self.seen:
            return
        if totals.prompt_tokens is None:
            yield (
                f"the prompt throughput adds up to {self._sum('prompt')} tokens, with the cached ones in vLLM "
                "up to about 0.15, without them since: the log does not say which"
            )
        if totals.cached_share is not None:
            yield "the cached share is the engine's prefix cache hit rate, of its last 1,000 requests a line"
        if totals.cached_share == 0:
            yield "a prefix cache hit rate of 0.0 % throughout: prefix caching may be off"

    def _sum(self, what: str) -> int:
        return round(self._counts[f"statistics {what}"] / 10 * self._interval_s)

    def _cached_share(self, requests: int | None) -> float | None:
        """The last hit rates, weighted with each engine's prompt tokens, where their windows hold all requests.

        In longer logs the rates of all lines, weighted likewise.
        """
        counts = self._counts
        last: dict[str, tuple[int, int]] = {}
        for key, value in counts.items():
            if key.startswith("hit rate of "):
                engine, _, seconds = key.removeprefix("hit rate of ").rpartition("@")
                last[engine] = max(last.get(engine, (int(seconds), value)), (int(seconds), value))
        weights = {engine: counts[f"prompt of {engine}"] for engine in last}
        if not last:
            return None
        if not any(weights.values()):
            return statistics.fmean(value - 1 for _, value in last.values()) / 1000
        long = requests is not None and requests > _WINDOW_REQUESTS * len(last)
        if long and counts["statistics with hits"]:  # the first engine had lines of their own for them
            return counts["statistics hits"] / counts["statistics with hits"] / 1000
        hits = sum((value - 1) * weights[engine] for engine, (_, value) in last.items())
        return hits / sum(weights.values()) / 1000

    def _span_s(self) -> float | None:
        stamps = {
            kind: [int(key.rpartition("@")[2]) for key in self._counts if key.startswith(f"{kind}@")]
            for kind in ("from", "until")
        }
        if not stamps["until"]:
            return None
        return max(stamps["until"]) + max(stamps["from"]) + self._interval_s

    def _engine(self, writer: str, engine: str | None) -> str:
        name = f"{writer}{engine or ''}"
        if name not in self._engines and len(self._engines) >= _MOST_ENGINES:
            return ""
        self._engines.add(name)
        return name

    def _keep(self, what: str, seconds: int, value: int) -> None:
        """Remember the newest value. Counts can only be added up, so its time is in the key: one a reader."""
        newest = self._newest.get(what)
        if newest is not None:
            if newest > seconds:
                return
            del self._counts[f"{what}@{newest}"]
        self._newest[what] = seconds
        self._counts[f"{what}@{seconds}"] = value + 1  # adding counters up drops zeros


def _tenths(text: str) -> int:
    """A number with one decimal, times ten, exactly."""
    return int(text.replace(".", ""))
