"""OpenAI's Batch API: the input file, the output file and the error file, in any combination.

Source: the API reference. `created` in an output is a time of processing, not of arrival, so it is not used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from advisor.logs.formats.base import as_count, as_label, as_row, mostly
from advisor.logs.formats.batch import Batch
from advisor.logs.formats.generic import read_status
from advisor.logs.operations import OTHER, other_model, other_route
from advisor.logs.prompts import as_prompt, find_output
from advisor.logs.record import Record, Row, UnusableError


class OpenAIBatch(Batch):
    """`custom_id` with `method`, `url`, `body`, or with `response` and `error`."""

    name: ClassVar[str] = "openai-batch"
    fields: ClassVar[tuple[str, ...]] = ("custom_id", "method", "url", "body", "response", "error")
    requests_file: ClassVar[str] = "batch's input file"
    results_file: ClassVar[str] = "batch's output file"

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(sample, lambda row: "custom_id" in row and ("body" in row or "response" in row))

    @staticmethod
    def _is_result(row: Row) -> bool:
        return "response" in row or "error" in row

    def _request(self, row: Row) -> Record:
        body, route = row.get("body"), as_label(row.get("url"))
        if other_route(route):
            raise UnusableError(OTHER)
        if not isinstance(body, dict):
            raise UnusableError("no request body")
        return Record(prompt=as_prompt(body), model=as_label(body.get("model")), route=route)

    def _result(self, row: Row) -> Record:
        response = as_row(row.get("response"))
        body, error = as_row(response.get("body")), as_row(row.get("error"))
        fault = as_label(error.get("code")) or error or body.get("error")
        status = read_status(response.get("status_code"), fault)
        if not response or status not in (None, "ok"):
            return Record(status=status or "error")
        model, usage = as_label(body.get("model")), as_row(body.get("usage"))
        if body.get("object") == "list" or other_model(model):
            raise UnusableError(OTHER)
        details = as_row(usage.get("prompt_tokens_details") or usage.get("input_tokens_details"))
        output = as_count(usage.get("completion_tokens", usage.get("output_tokens")), "output length")
        return Record(
            prompt_tokens=as_count(usage.get("prompt_tokens", usage.get("input_tokens")), "prompt length"),
            output_tokens=output,
            cached_tokens=as_count(details.get("cached_tokens"), "cached tokens"),
            output_text=find_output({"response": body}) if output < 0 else None,
            model=model,
            status="ok",
        )
