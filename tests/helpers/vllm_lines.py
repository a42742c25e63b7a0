"""Lines as vLLM logs them, for the writers of both of its generations."""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterable

from helpers.traffic import START_NS, Call

SECOND_NS = 10**9
_ID = re.compile(r"chatcmpl-call-\d+")
_BASE, _ADAPTER = "qwen3-8b", "llama-70b"  # what the generated calls ask for


def stamp(time_ns: int, level: str, place: str) -> str:
    """`INFO 09-14 08:00:00 [logger.py:40] `."""
    moment = datetime.datetime.fromtimestamp(time_ns // SECOND_NS, datetime.UTC)
    return f"{level} {moment:%m-%d %H:%M:%S} [{place}] "


def startup(version: str) -> list[tuple[int, str]]:
    """What a server says of itself, with the model in its arguments."""
    lines = [
        f"{stamp(START_NS, 'INFO', 'api_server.py:1839')}vLLM API server version {version}",
        f"{stamp(START_NS, 'INFO', 'utils.py:233')}non-default args: {{'model_tag': '/models/x', "
        f"'served_model_name': ['{_BASE}'], 'enable_lora': True, 'max_log_len': None}}",
        "\x1b[36m(EngineCore_DP0 pid=99)\x1b[0m \x1b[32mINFO\x1b[0m \x1b[90m09-14 08:00:00\x1b[0m "
        "\x1b[90m[gpu_model_runner.py:2602]\x1b[0m Starting to load model /models/x...",
        "Loading safetensors checkpoint shards: 100% Completed | 1/1 [00:00<00:00,  1.53it/s]",
    ]
    return [(START_NS, line) for line in lines]


def render(call: Call) -> str:
    """The prompt after the chat template, in as many words as the messages have with their roles."""
    return "".join(f"<{message['role']}>\n{message['content']}\n" for message in call.messages)


def received(call: Call, middle: str) -> str:
    """The line for a received request, without who wrote it; `middle` is what stands before the adapter."""
    adapter = "None"
    if call.model == _ADAPTER:
        adapter = f"LoRARequest(lora_name='{_ADAPTER}', lora_int_id=1, lora_path='/models/a', tensorizer=None)"
    head = stamp(call.arrival_ns, "INFO", "logger.py:40")
    return f"{head}Received request chatcmpl-{call.id}: {middle}lora_request: {adapter}."


def mix(lines: Iterable[tuple[int, str]]) -> list[str]:
    """Lines with their times, about in order: a server that buffers comes a second late."""
    by_second = itertools.groupby(sorted(lines, key=lambda line: line[0]), lambda line: line[0] // SECOND_NS)
    seconds = [[text for _, text in group] for _, group in by_second]
    for place in range(1, len(seconds) - 1, 3):
        ids = [set(_ID.findall("".join(group))) for group in seconds[place : place + 2]]
        if ids[0].isdisjoint(ids[1]):
            seconds[place], seconds[place + 1] = seconds[place + 1], seconds[place]
    return [text for group in seconds for text in group]
