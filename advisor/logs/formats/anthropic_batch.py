"""Anthropic's Message Batches: results, with the requests (`custom_id`, `params`) where they were kept too.

Source: the API reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from advisor.logs.formats.anthropic import cache_notes, count_lives, read_usage
from advisor.logs.formats.base import as_label, as_row, mostly
from advisor.logs.formats.batch import Batch
from advisor.logs.prompts import as_prompt
from advisor.logs.record import Record, Row, UnusableError


class AnthropicBatch(Batch):
    """`custom_id` with `result`, or with `params`."""

    name: ClassVar[str] = "anthropic-batch"
    fields: ClassVar[tuple[str, ...]] = ("custom_id", "result", "params")
    requests_file: ClassVar[str] = "batch's requests, a line each"
    results_file: ClassVar[str] = "batch's results"

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: "custom_id" in row and ("result" in row or "params" in row))

    @staticmethod
    def _is_result(row: Row) -> bool:
        return "result" in row

    def _request(self, row: Row) -> Record:
        params = row.get("params")
        if not isinstance(params, dict):
            raise UnusableError("no request body")
        return Record(prompt=as_prompt(params), model=as_label(params.get("model")))

    def _result(self, row: Row) -> Record:
        result = as_row(row.get("result"))
        message = as_row(result.get("message"))
        if result.get("type") != "succeeded":
            return Record(status=as_label(result.get("type")) or "error")
        usage = as_row(message.get("usage"))
        counts = read_usage(usage)
        count_lives(usage, self.counts)
        return Record(
            prompt_tokens=counts.prompt,
            output_tokens=counts.output,
            cached_tokens=counts.cached,
            model=as_label(message.get("model")),
            status="ok",
        )

    def _notes(self) -> Iterable[str]:
        yield from super()._notes()
        if self.counts["told prompt_tokens"]:
            yield "prompt tokens are input_tokens and what was read from and written to the cache"
        yield from cache_notes(self.counts)
