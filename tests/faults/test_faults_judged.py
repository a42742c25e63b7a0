"""The judge of the fault suite: one that finds nothing would pass every fault."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.faults_client import Ask, Got, judged
from helpers.faults_run import Quiet, Row

ASK = Ask((7, 8), 3, stream=True)
QUIET = [4, 5, 6]
GOOD: dict[str, Any] = {"status": 200, "tokens": QUIET, "finish": "length", "over": True}


@pytest.mark.parametrize(
    ("what", "judgement"),
    [
        ({}, "good"),
        ({"tokens": [4, 5]}, "lost"),
        ({"tokens": [], "status": 0, "error": "ClientOSError"}, "lost"),
        ({"over": False}, "lost"),
        ({"finish": None}, "lost"),
        ({"error": "the engine failed while this request ran"}, "lost"),
        ({"status": 500, "tokens": []}, "lost"),
        ({"status": 429, "tokens": []}, "lost"),
        ({"status": 503, "tokens": [], "retry_after": "5"}, "lost"),
        ({"status": 429, "tokens": [], "retry_after": "1"}, "refused"),
        ({"tokens": [4, 5, 5, 6]}, "doubled"),
        ({"tokens": [4, 5, 5]}, "wrong"),
    ],
)
def test_an_answer_is_good_only_whole_and_with_the_tokens_of_the_quiet_run(
    what: dict[str, Any], judgement: str
) -> None:
    assert judged(Got(0, 0.0, **(GOOD | what)), ASK, QUIET) == judgement


def test_other_tokens_are_excused_only_by_the_rule_that_is_given() -> None:
    got = Got(0, 0.0, **(GOOD | {"tokens": [4, 5, 9]}))
    assert judged(got, ASK, QUIET, lambda *_: True) == "ties"
    assert judged(got, ASK, QUIET, lambda *_: False) == "wrong"


def test_a_row_with_a_lost_request_is_not_clean_and_says_which() -> None:
    quiet = Quiet([ASK, ASK], [QUIET, QUIET], [0.1, 0.1], 0.2)
    row = Row("fault", "fleet", 0)
    row.take([Got(0, 0.0, **GOOD), Got(1, 0.0, **(GOOD | {"over": False}))], quiet)
    assert (row.requests, row.lost) == (2, 1)
    assert not row.clean
    assert row.why[0].startswith("lost 1: 200")
