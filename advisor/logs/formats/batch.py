"""What batch APIs share: requests in one file, results in others, joined on `custom_id`.

A batch has no arrival times: it is work for whenever there is room. Either side may be missing. Ids are unique
within a batch only, so the n-th request of an id belongs to the n-th result of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from advisor.logs.formats.base import Basis, Format, Parsed
from advisor.logs.formats.gaps import left_open, note_known
from advisor.logs.options import ReadOptions
from advisor.logs.record import Record, Row, UnusableError
from advisor.logs.trace import Unknown

_TIMES = "batch files have no times of single requests"
_ONLINE = "not needed for offline work; for online traffic, log it where it is served: docs/collecting-logs.md"
_LABELS = "batch files name no callers"
_TOLD = ("prompt_tokens", "output_tokens", "cached_tokens", "prompt", "model")
_RESULTS = "the results of the batch were not given"


class Batch(Format):
    """Lines of requests, of results, or of both."""

    ordered: ClassVar[bool] = True
    cannot_tell: ClassVar[tuple[Unknown, ...]] = (
        Unknown("arrivals", _TIMES, _ONLINE),
        Unknown("latency.ttft_s", _TIMES, _ONLINE),
        Unknown("latency.e2e_s", _TIMES, _ONLINE),
        Unknown("clients", _LABELS, _ONLINE),
        Unknown("sessions", _LABELS, _ONLINE),
    )
    requests_file: ClassVar[str]  # what the user calls the files
    results_file: ClassVar[str]

    def __init__(self, sample: Sequence[Row], options: ReadOptions) -> None:
        del sample, options  # there is nothing to settle
        self.counts: Counter[str] = Counter()
        self._asked: dict[str, int] = {}  # custom_id -> requests seen
        self._answered: dict[str, int] = {}  # custom_id -> results seen
        self._open: set[str] = set()  # keys of requests that count
        self._failed: set[str] = set()  # keys of results without their requests

    @staticmethod
    @abstractmethod
    def _is_result(row: Row) -> bool:
        """Whether the row is a result."""

    @abstractmethod
    def _request(self, row: Row) -> Record:
        """The record of a request. Raises UnusableError."""

    @abstractmethod
    def _result(self, row: Row) -> Record:
        """The record of a result; its status says whether it failed. Raises UnusableError."""

    def parse(self, row: Row) -> Iterable[Parsed]:
        custom_id = row.get("custom_id")
        if not isinstance(custom_id, str) or not custom_id:
            raise UnusableError("no custom_id")
        if self._is_result(row):
            key = _next_key(self._answered, custom_id)
            self.counts["results"] += 1
            record = self._result(row)
            if record.status != "ok" and key not in self._open:
                self._failed.add(key)
                raise UnusableError("failed request")
        else:
            key = _next_key(self._asked, custom_id)
            self.counts["requests"] += 1
            record = self._request(row)
            if key in self._failed:
                raise UnusableError("failed request")
            self._open.add(key)
        self.counts["prompts"] += record.prompt is not None
        record.key = key
        note_known(record, _TOLD, self.counts)
        return (record,)

    def basis(self) -> Basis:
        return Basis(
            clock=None,
            arrival="none",
            tokens="usage of the results" if self.counts["told prompt_tokens"] else "none",
            prefix="text of the prompts" if self.counts["prompts"] else None,
            notes=tuple(self._notes()),
            unknown=left_open(self._gaps(), self.counts),
        )

    def _notes(self) -> Iterable[str]:
        if self.counts["results"] and self.counts["requests"]:
            yield "requests and results are joined on custom_id"

    def _gaps(self) -> Mapping[str, Unknown]:
        """What to declare without results, and without requests."""
        give = f"give the {self.results_file} too"
        return {
            "prompt_tokens": Unknown("lengths.prompt", _RESULTS, f"{give}, or --tokenizer NAME"),
            "output_tokens": Unknown("lengths.output", _RESULTS, give),
            "cached_tokens": Unknown(
                "sharing.cached_share", _RESULTS if not self.counts["results"] else "the usage has none", give
            ),
            "prompt": Unknown(
                "sharing",
                "results hold no prompts",
                f"give the {self.requests_file} too: docs/collecting-logs.md",
            ),
            "model": Unknown("log.models", "no line names a model", f"give the {self.requests_file} too"),
        }


def _next_key(seen: dict[str, int], custom_id: str) -> str:
    count = seen[custom_id] = seen.get(custom_id, 0) + 1
    return f"{count} {custom_id}"
