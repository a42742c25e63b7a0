"""The generated sample log: same bytes everywhere, and the traffic it promises."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path

import pytest

from advisor.samples import ChatService, main, write_sample


def test_same_seed_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        write_sample(tmp_path / name, ChatService(minutes=5), seed=7)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    write_sample(tmp_path / "c", ChatService(minutes=5), seed=8)
    assert len(digests) == 1
    assert hashlib.sha256((tmp_path / "c").read_bytes()).hexdigest() not in digests


def test_turns_repeat_their_history_and_chats_share_the_system_prompt() -> None:
    lines = list(ChatService(minutes=10).lines())
    chats = [line for line in lines if line["session_id"].startswith("chat")]
    systems = {line["request"]["messages"][0]["content"] for line in chats}
    assert len(systems) == 1
    turns: dict[str, list[list[dict[str, str]]]] = {}
    for line in chats:
        turns.setdefault(line["session_id"], []).append(line["request"]["messages"])
    longer = [pair for messages in turns.values() for pair in pairwise(messages)]
    assert longer
    assert all(later[: len(earlier)] == earlier for earlier, later in longer)


def test_arrivals_are_in_order_and_bursts_have_three_times_the_sessions() -> None:
    service = ChatService(minutes=2000)
    lines = [line for line in service.lines() if len(line["request"]["messages"]) == 2]  # first turns
    minutes = [int(line["timestamp"][14:16]) * 60 + float(line["timestamp"][17:23]) for line in lines]
    bursting = sum(second % service.burst_every_s < service.burst_s for second in minutes)
    share = service.burst_s / service.burst_every_s
    expected = share * service.burst / (share * service.burst + 1 - share)
    assert abs(bursting / len(lines) - expected) < 4 * (expected * (1 - expected) / len(lines)) ** 0.5
    stamps = [line["timestamp"] for line in ChatService(minutes=10).lines()]
    assert stamps == sorted(stamps)


def test_the_command_writes_what_the_function_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path / "a"), "--minutes", "5", "--seed", "7"])
    count = write_sample(tmp_path / "b", ChatService(minutes=5), seed=7)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert capsys.readouterr().err == f"{count} requests\n"
