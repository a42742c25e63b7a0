"""SGLang with `--log-requests` as text at level 3, between the other lines of the server."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.traffic import Call
from helpers.vllm_lines import SECOND_NS
from logs.writers.sglang_log import output, request

FORMAT = "sglang-log"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "cached_tokens", "blocks", "ttft_s", "e2e_s"))
RESOLUTION_NS = SECOND_NS


def write(calls: Sequence[Call], path: Path) -> None:
    """Whole seconds, in the order of time."""
    lines = [(calls[0].arrival_ns, "server_args=ServerArgs(model_path='/models/x', tokenizer_path=None)")]
    for call in calls:
        if call.error == "503":
            continue  # refused before the logger
        obj = _dataclass(request(call))
        lines.append((call.arrival_ns, f"Receive: obj={obj}"))
        lines.append((call.arrival_ns, "Decode batch, #running-req: 1, #token: 74, token usage: 0.00"))
        lines.append((call.end_ns, f"Finish: obj={obj}, out={output(call)!r}"))
        lines.append((call.end_ns, 'INFO:     127.0.0.1:42258 - "POST /generate HTTP/1.1" 200 OK'))
    lines.sort(key=lambda line: line[0])
    path.write_text("".join(f"[{_stamp(time_ns)}] {text}\n" for time_ns, text in lines))


def _dataclass(fields: Mapping[str, Any]) -> str:
    """With fields of types that are no literals, as the real one has."""
    shown = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    return f"GenerateReqInput({shown}, mode=<Mode.A: 'a'>, scale=inf, tensor=tensor([[1.]]))"


def _stamp(time_ns: int) -> str:
    return f"{datetime.datetime.fromtimestamp(time_ns // SECOND_NS, datetime.UTC):%Y-%m-%d %H:%M:%S}"
