"""OpenAI's organization usage: buckets of time with sums, grouped or not. No requests, so no distributions.

Source: the API reference, `/v1/organization/usage/completions`. `input_tokens` includes cached ones. A page is
one document; several pages, or a list of buckets, are fine too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed, as_label, as_row, mostly
from advisor.logs.operations import OTHER
from advisor.logs.options import ReadOptions
from advisor.logs.record import Row, UnusableError
from advisor.logs.times import as_number
from advisor.logs.trace import Totals, Unknown
from engine.errors import InputError

_RESULT = "organization.usage.completions.result"
_SUMS = "usage buckets hold sums, not requests"
_LOG = "log requests where you send them: docs/collecting-logs.md"
_MOST = 10**15  # tokens in a bucket; more is damage


class OpenAIUsage(Format):
    """`object` page or bucket; `results` of `input_tokens`, `output_tokens`, `num_model_requests`."""

    name: ClassVar[str] = "openai-usage"
    fields: ClassVar[tuple[str, ...]] = ("object", "start_time", "end_time", "results", "input_tokens")
    ordered: ClassVar[bool] = True  # the span is no sum
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("arrivals", _SUMS, _LOG),
        Unknown("sharing", _SUMS, _LOG),
        Unknown("latency.ttft_s", _SUMS, _LOG),
        Unknown("latency.e2e_s", _SUMS, _LOG),
        Unknown("clients", _SUMS, _LOG),
        Unknown("sessions", _SUMS, _LOG),
    )

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        del sample  # there is nothing to settle
        self.counts: Counter[str] = Counter()
        self._models = {value for field, value in options.where if field == "model"}
        self._spans: list[tuple[float, float]] = []  # first start and last end
        self._by_model: Counter[str | None] = Counter()  # prompt tokens
        if other := next((field for field, _ in options.where if field != "model"), None):
            raise InputError(
                f"--where {other} needs requests, and usage buckets have none",
                hint="--where model=NAME, of usage grouped by model",
            )

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: any(True for _ in _buckets(row)))

    def parse(self, row: Row) -> Iterable[Parsed]:
        if row.get("object") == "page":
            self.counts["pages"] += 1
            self.counts["last pages"] += not row.get("has_more")
        elif row.get("object") != "bucket":
            raise UnusableError("not a usage bucket")
        errors = []
        for bucket in _buckets(row):
            self._note_span(bucket)
            for result in bucket["results"]:
                try:
                    self._add(as_row(result))
                except UnusableError as error:
                    errors.append(error)
        return errors

    def basis(self) -> Basis:
        counts, start_end = self.counts, self._spans
        cached = counts["cached"] if counts["told cached"] and not counts["no cached"] else None
        models = list(self._by_model)
        totals = Totals(
            source="organization usage buckets",
            requests=counts["requests"],
            prompt_tokens=counts["prompt"],
            output_tokens=counts["output"],
            cached_tokens=cached,
            cached_share=cached / counts["prompt"] if cached is not None and counts["prompt"] else None,
            span_s=start_end[0][1] - start_end[0][0] if start_end else None,
            model=models[0] if len(models) == 1 else None,
        )
        return Basis(
            clock=None,
            arrival="none",
            tokens="sums of usage buckets, cached tokens included",
            notes=tuple(self._notes()),
            unknown=tuple(self._unknown(cached)),
            totals=totals if counts["results"] else None,
        )

    def _notes(self) -> Iterator[str]:
        yield "sums of usage buckets: means and the cached share are known, percentiles are not"
        if len(self._by_model) > 1:
            whole = self.counts["prompt"] or 1
            shares = [
                f"{name or 'unnamed'} {tokens / whole:.0%}" for name, tokens in self._by_model.most_common(8)
            ]
            yield f"several models are added up (share of prompt tokens): {', '.join(shares)}"
        if batched := self.counts["batched"]:
            yield f"requests sent as batches: {batched} of {self.counts['requests']}"
        if self.counts["pages"] and not self.counts["last pages"]:
            yield "the last page is missing: has_more is true on all of them"

    def _unknown(self, cached: int | None) -> Iterator[Unknown]:
        if cached is None:
            yield Unknown("sharing.cached_share", "buckets lack input_cached_tokens", "fetch the usage again")
        if len(self._by_model) > 1:
            yield Unknown("log.models", "several models are added up", "--where model=NAME")
        elif list(self._by_model) == [None]:
            yield Unknown("log.models", "the usage is not grouped by model", "fetch it with group_by=model")

    def _note_span(self, bucket: Row) -> None:
        start, end = as_number(bucket.get("start_time")), as_number(bucket.get("end_time"))
        if start is None or end is None or end < start:
            self.counts["buckets without a span"] += 1
            return
        earlier = self._spans or [(start, end)]
        self._spans = [(min(start, earlier[0][0]), max(end, earlier[0][1]))]

    def _add(self, result: Row) -> None:
        """Add up one result. Raises UnusableError."""
        if result.get("object", _RESULT) != _RESULT:
            raise UnusableError(OTHER)
        model = as_label(result.get("model"))
        if self._models and model not in self._models:
            raise UnusableError("not selected by --where model")
        prompt = _tokens(result.get("input_tokens"))
        output, requests = _tokens(result.get("output_tokens")), _tokens(result.get("num_model_requests"))
        if prompt is None or output is None or requests is None:
            raise UnusableError("no token counts")
        cached = _tokens(result.get("input_cached_tokens"))
        self.counts["results"] += 1
        self.counts["prompt"] += prompt
        self.counts["output"] += output
        self.counts["requests"] += requests
        self.counts["cached"] += cached or 0
        self.counts["told cached" if cached is not None else "no cached"] += prompt > 0 or cached is not None
        self.counts["batched"] += requests if result.get("batch") is True else 0
        self._by_model[model] += prompt


def _buckets(row: Row) -> Iterator[Row]:
    """The buckets of a page, or the bucket that a row is."""
    items: Any = row.get("data") if row.get("object") == "page" else [row]
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict) and item.get("object") == "bucket" and isinstance(item.get("results"), list):
            yield item


def _tokens(value: object) -> int | None:
    number = as_number(value)
    return int(number) if number is not None and 0 <= number <= _MOST else None
