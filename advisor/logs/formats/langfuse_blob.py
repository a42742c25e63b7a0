"""Langfuse's export to blob storage: `observations_v2/` and the older `observations/`, snake_case, UTC times.

Source: langfuse/langfuse-docs, `blob-storage-export-fields`. In CSV and Parquet objects are text or maps. The
older files have no users and no sessions; both folders of one export hold the same calls, which are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from advisor.logs.formats.base import mostly
from advisor.logs.formats.langfuse import Langfuse, Names
from advisor.logs.record import Row

_HINTS = ("usage_details", "provided_model_name", "parent_observation_id", "completion_start_time")


class LangfuseBlob(Langfuse):
    """`trace_id`, `type`, `start_time`, `end_time`, `input`, `usage_details`, `provided_model_name`."""

    name: ClassVar[str] = "langfuse-blob"
    fields: ClassVar[tuple[str, ...]] = (
        "trace_id", "type", "start_time", "completion_start_time", "provided_model_name", "usage_details",
    )  # fmt: skip
    arrival: ClassVar[str] = "start_time"
    names: ClassVar[Names] = Names(
        end="end_time",
        first="completion_start_time",
        ttft="time_to_first_token",
        usage="usage_details",
        model="provided_model_name",
        client="user_id",
        session="session_id",
    )

    @classmethod
    def detect(cls, sample: Sequence[Row]) -> bool:
        keys = {"trace_id", "start_time", "type"}
        return mostly(sample, lambda row: keys <= row.keys() and any(hint in row for hint in _HINTS))
