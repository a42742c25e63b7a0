"""What other tools report of a run of a few requests, against figures worked out by hand from their sources."""

from __future__ import annotations

from typing import Any

import pytest

from advisor.simulation.slo import Slo
from advisor.validation.elsewhere import AIPERF, GUIDELLM, VLLM, Elsewhere, elsewhere
from advisor.validation.record import Record

SLO = Slo(ttft_s=0.5, tpot_s=0.125)


def record(**changes: Any) -> Record:
    """Due at 9, connected in 0.05 s, sent at 10; its role at 10.1, tokens at 10.4, 10.5, 10.7 and 10.8."""
    fields: dict[str, Any] = {
        "row": 0, "t_sched": 9.0, "want_in": 100, "want_out": 4, "status": "ok", "t_send": 10.0, "t_conn": 0.05,
        "t_any": 10.1, "t_chunk": (10.4, 10.5, 10.7, 10.8), "t_done": 10.9, "n_in": 100, "n_out": 4,
        "n_out_source": "usage",
    }  # fmt: skip
    return Record(**(fields | changes))


def by_tool(records: list[Record], slo: Slo = SLO) -> dict[str, Elsewhere]:
    return {one.tool: one for one in elsewhere(records, slo)}


def test_one_request_has_as_many_latencies_as_there_are_tools() -> None:
    found = by_tool([record()])
    vllm, aiperf, guidellm = found[VLLM], found[AIPERF], found[GUIDELLM]
    assert vllm.ttft_p50_s == pytest.approx(0.15)  # 10.1 - 9.95: to the role, from before the connection
    assert aiperf.ttft_p50_s == pytest.approx(0.45)  # 10.4 - 9.95: to the first token
    assert guidellm.ttft_p50_s == pytest.approx(0.40)  # 10.4 - 10: from the first bytes sent
    assert vllm.tpot_p50_s == pytest.approx(0.7 / 3)  # the wait for the first token is in it
    assert aiperf.tpot_p50_s is None
    assert guidellm.tpot_p50_s == pytest.approx(0.8 / 4)  # the whole request over its tokens
    assert vllm.itl_p50_s == pytest.approx(0.15)  # of 0.3, 0.1, 0.2, 0.1
    assert aiperf.itl_p50_s == pytest.approx(0.4 / 3)
    assert guidellm.itl_p50_s == pytest.approx(0.4 / 3)


def test_without_a_chunk_before_the_first_token_all_end_ttft_there() -> None:
    for changes in ({"t_any": None}, {"t_any": 10.4}):
        vllm = by_tool([record(**changes)])[VLLM]
        assert vllm.ttft_p50_s == pytest.approx(0.45)
        assert vllm.tpot_p50_s == pytest.approx(0.4 / 3)
        assert vllm.itl_p99_s == pytest.approx(0.1 + 0.98 * 0.1)  # numpy's linear, of 0.1, 0.1, 0.2


def test_failures_are_nothing_to_vllm_and_in_the_share_of_the_others() -> None:
    plain = {"t_any": None, "t_conn": 0.0}
    records = [
        record(**plain),  # TPOT 0.133: misses
        record(**plain, t_chunk=(10.4, 10.5, 10.6, 10.7)),  # keeps both
        record(**plain, t_chunk=(10.6, 10.7, 10.8, 10.9)),  # TTFT 0.6: misses
        record(**plain, status="wrong_length", n_out=3, t_chunk=(10.4, 10.5, 10.6)),  # they do not look
        record(status="http_5xx", t_chunk=(), t_any=None, n_out=None),
        record(status="timeout", n_out=2, t_chunk=(10.1, 10.2), t_done=20.0),
        record(status="unsent", t_send=None, t_chunk=(), t_any=None, n_out=None, t_done=None),
    ]
    found = by_tool(records)
    assert [one.requests for one in found.values()] == [4, 4, 4]
    assert found[VLLM].good_share == pytest.approx(2 / 4)
    assert found[VLLM].good_rate_rps == pytest.approx(2 / 20)  # until the last request is over, failed or not
    assert found[AIPERF].good_share == pytest.approx(2 / 6)
    assert found[AIPERF].good_rate_rps == pytest.approx(2 / 0.9)  # from the first send to the last token
    assert found[GUIDELLM].good_share == pytest.approx(2 / 6)


def test_one_token_is_good_bad_or_nothing() -> None:
    records = [
        record(t_any=None, t_chunk=(10.4, 10.5, 10.6, 10.7)),
        record(t_any=None, t_chunk=(10.4,), n_out=1, want_out=1),
    ]
    found = by_tool(records)
    assert found[VLLM].good_share == 1.0  # its TPOT counts as 0
    assert found[AIPERF].good_share == 0.5  # it has no ITL, so it is not good
    assert found[GUIDELLM].good_share == 1.0  # it cannot be judged, so it is left out: 1 of 1
    assert found[AIPERF].itl_p50_s == found[GUIDELLM].itl_p50_s == pytest.approx(0.1)
    only_ttft = by_tool(records, Slo(ttft_s=0.42))
    assert only_ttft[AIPERF].good_share == 0.0  # 0.45 with the connection
    assert only_ttft[GUIDELLM].good_share == 1.0  # 0.40 without


def test_guidellm_counts_a_request_by_its_tokens_and_names_a_value_that_occurred() -> None:
    # Three short requests at 0.1 s a token, one of 32 tokens at 0.2: most tokens are slow, most requests fast.
    fast = [record(t_any=None, t_chunk=(10.0 + at, 10.1 + at), n_out=2) for at in (0.1, 0.2, 0.3)]
    slow = record(t_any=None, t_chunk=tuple(11.0 + 0.2 * i for i in range(32)), n_out=32)
    found = by_tool([*fast, slow])
    assert found[AIPERF].itl_p50_s == pytest.approx(0.1)
    assert found[GUIDELLM].itl_p50_s == pytest.approx(0.2)
    assert found[GUIDELLM].tpot_p50_s == pytest.approx((11.0 + 31 * 0.2 - 10.0) / 32)
    assert found[AIPERF].ttft_p50_s == pytest.approx(0.30)  # between 0.25 and 0.35
    assert found[GUIDELLM].ttft_p50_s == pytest.approx(0.2)  # the second of four: half of them are no longer


def test_nothing_completed_and_nothing_asked() -> None:
    for one in elsewhere([record(status="timeout", t_chunk=(), t_any=None, n_out=None)], SLO):
        assert one.requests == 0
        assert one.ttft_p50_s is one.itl_p99_s is one.tpot_p50_s is None
        assert one.good_share in (None, 0.0)  # vLLM divides by what completed
    assert all(one.good_share is one.good_rate_rps is None for one in elsewhere([record()], Slo()))
