"""LiteLLM's spend logs: rows of its table, or of `/spend/logs`, as JSON or as a dump where JSON is text.

Source: BerriAI/litellm, `schema.prisma` and `proxy/spend_tracking`. Prompts are stored only where asked for,
and then in `proxy_server_request`: `messages` stays `{}`. Times are UTC, which dumps do not say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from advisor.logs.formats.base import mostly
from advisor.logs.formats.calls import as_object, first_label
from advisor.logs.formats.litellm_payload import SHARED_GAPS, LiteLLM
from advisor.logs.prompts import as_prompt
from advisor.logs.record import Prompt, Record, Row, UnusableError
from advisor.logs.trace import Unknown

_DAY_SUM = "a day's sum, not a request: ask /spend/logs with summarize=false"


class LiteLLMSpend(LiteLLM):
    """`request_id`, `call_type`, `startTime`, `endTime`, `spend`, `metadata`, `proxy_server_request`."""

    name: ClassVar[str] = "litellm-spend"
    fields: ClassVar[tuple[str, ...]] = ("request_id", "call_type", "startTime", "endTime", "spend", "api_key")
    gaps: ClassVar[Mapping[str, Unknown]] = SHARED_GAPS | {
        "prompt": Unknown(
            "sharing",
            "the spend logs hold no prompts: LiteLLM stores them only where told to",
            "general_settings: store_prompts_in_spend_logs: true, with MAX_STRING_LENGTH_PROMPT_IN_DB=1000000 "
            "in the environment so that long ones stay whole, and without turn_off_message_logging; export the "
            "column proxy_server_request, which has them: docs/collecting-logs.md",
        )
    }

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        return mostly(
            sample, lambda row: {"request_id", "call_type", "startTime"} <= row.keys() or _is_day(row)
        )

    def _record(self, row: Row) -> Record:
        if _is_day(row):
            raise UnusableError(_DAY_SUM)
        record = super()._record(row)
        record.key = first_label(row.get("request_id"))  # pages of an export may overlap
        return record

    def _prompt(self, row: Row) -> Prompt | None:
        request = as_object(row.get("proxy_server_request"))
        return as_prompt(as_object(request.get("body")) or request) or as_prompt(row.get("messages"))

    def _names(self, row: Row) -> tuple[str | None, str | None]:
        client = first_label(row.get("end_user"), row.get("user"), row.get("api_key"))
        return client, first_label(row.get("session_id"))


def _is_day(row: Row) -> bool:
    return {"startTime", "spend", "users", "models"} <= row.keys() and "request_id" not in row
