"""What requests missed, in the groups that a report shows."""

from __future__ import annotations

from advisor.validation.metrics import Score

TTFT, TPOT, BOTH, TBT, ERROR = "TTFT only", "TPOT only", "both", "TBT only", "error"
_TARGETS = {"ttft", "tpot", "tbt"}


def attribution(score: Score) -> dict[str, int]:
    """The misses of a run by what was missed, in this order and 0 where there is none.

    TTFT is of the prefill side, TPOT and the largest gap are of the decode side: `both` missed one of each;
    `TPOT only` may have missed the gap as well; `error` did not complete.
    """
    found = dict.fromkeys((TTFT, TPOT, BOTH, TBT, ERROR), 0)
    for kind, count in score.misses.items():
        found[_group(set(kind.split("+")))] += count
    return found


def _group(missed: set[str]) -> str:
    if not missed <= _TARGETS:
        return ERROR
    if "ttft" in missed:
        return TTFT if len(missed) == 1 else BOTH
    return TPOT if "tpot" in missed else TBT
