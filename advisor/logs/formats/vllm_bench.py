"""Results of `vllm bench serve`: one object a run, with an entry for every request where details were saved.

`--save-detailed` gives parallel arrays; without it there are sums only. `--append-result` writes several
objects one after another. SGLang's bench_serving writes the same arrays with `--output-details`. A benchmark is
no traffic: its client chose arrivals and lengths. Source: vllm/benchmarks/serve.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed, as_count, as_label, as_seconds, mostly
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.times import Clock, as_number, find_zone
from advisor.logs.trace import Totals, Unknown

_SERVER_LOG = "analyze the log of the server that was measured; docs/collecting-logs.md"
_MOST_SPAN_S = 10**6  # of one benchmark; more is damage


class VLLMBench(Format):
    """One benchmark result a row."""

    name: ClassVar[str] = "vllm-bench"
    fields: ClassVar[tuple[str, ...]] = (
        "duration",
        "completed",
        "total_input_tokens",
        "input_lens",
        "start_times",
    )
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("sharing", "benchmark results have no prompts", _SERVER_LOG),
        Unknown("sharing.cached_share", "benchmark results have no cached tokens", _SERVER_LOG),
        Unknown("clients", "a benchmark has one client", "analyze a log of traffic"),
        Unknown("sessions", "benchmark results have no sessions", "analyze a log of traffic"),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        self.counts: Counter[str] = Counter()
        starts = [value for row in sample for value in _listed(row, "start_times")[:100]]
        zone = find_zone(options.tz)
        self._clock = Clock.of_sample(starts, options.time_unit or "s", zone) if starts else None
        self._model = next((model for row in sample if (model := as_label(row.get("model_id")))), None)

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: {"duration", "completed", "total_input_tokens"} <= row.keys())

    def parse(self, row: Row) -> Iterator[Parsed]:
        if "total_input_sequences" in row:  # of embeddings and rerankers
            raise UnusableError("other operation than generating text")
        prompts, outputs = row.get("input_lens"), row.get("output_lens")
        if not isinstance(prompts, list) or not isinstance(outputs, list):
            self._add_sums(row)
            raise UnusableError("result without details")
        self.counts["results"] += 1
        columns = {name: _listed(row, name) for name in ("start_times", "ttfts", "itls", "latencies", "errors")}
        model = as_label(row.get("model_id"))
        for index, prompt in enumerate(prompts):
            entry = {name: column[index] if index < len(column) else None for name, column in columns.items()}
            try:
                output = outputs[index] if index < len(outputs) else None
                yield self._request(prompt, output, model, entry)
            except UnusableError as error:
                yield error

    def basis(self) -> Basis:
        counts = self.counts
        notes = ["a benchmark, not traffic: its client chose the arrivals and the lengths"]
        if counts["results"] > 1 and self._clock is not None:
            notes.append(f"start times of {counts['results']} results are taken as of one machine's clock")
        unknown = []
        if self._clock is None:
            why = "results without details, or of older versions, have no start times"
            unknown.append(Unknown("arrivals", why, "vllm bench serve --save-result --save-detailed"))
        return Basis(
            clock=self._clock,
            arrival="none" if self._clock is None else f"start_times, {self._clock.words}",
            notes=tuple(notes),
            unknown=tuple(unknown),
            totals=self._totals(),
        )

    def _request(self, prompt: object, output: object, model: str | None, entry: Mapping[str, Any]) -> Record:
        tokens, answer = as_count(prompt, "prompt length"), as_count(output, "output length")
        ttft = as_seconds(entry["ttfts"])
        if entry["errors"] or (answer == 0 and not ttft > 0):
            raise UnusableError("failed request")
        return Record(
            arrival_ns=None if self._clock is None else self._clock.ns(entry["start_times"]),
            prompt_tokens=tokens,
            output_tokens=answer,
            ttft_s=ttft,
            e2e_s=_latency(entry, ttft),
            model=model,
            status="ok",
        )

    def _add_sums(self, row: Row) -> None:
        names = ("completed", "total_input_tokens", "total_output_tokens")
        self.counts.update({name: max(0, as_count(row.get(name), "number of tokens")) for name in names})
        duration = as_number(row.get("duration"))
        if duration is not None and 0 <= duration < _MOST_SPAN_S:
            self.counts["milliseconds"] += round(duration * 1000)
        self.counts["results in sum"] += 1

    def _totals(self) -> Totals | None:
        counts = self.counts
        if counts["results"] or not counts["results in sum"]:
            return None
        return Totals(
            source="sums of the benchmark results",
            requests=counts["completed"],
            prompt_tokens=counts["total_input_tokens"],
            output_tokens=counts["total_output_tokens"],
            span_s=counts["milliseconds"] / 1000,
            model=self._model,
        )


def _latency(entry: Mapping[str, Any], ttft_s: float) -> float:
    """Seconds until the end: logged by newer versions, else the first token's plus all gaps after it."""
    latency = as_seconds(entry["latencies"])
    gaps = entry["itls"]
    if not math.isnan(latency) or not isinstance(gaps, list):
        return latency
    return ttft_s + math.fsum(as_seconds(gap) for gap in gaps)


def _listed(row: Row, name: str) -> list[Any]:
    value = row.get(name)
    return value if isinstance(value, list) else []
