"""vLLM 0.11.0 with --enable-log-requests and --enable-log-outputs: prompts and answers, two API servers mixed.

Statistics are off. The other model is a LoRA adapter. A call refused for a full queue was received before;
other failures are an access line only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers.traffic import Call
from helpers.vllm_lines import SECOND_NS, mix, received, render, stamp, startup

FORMAT = "vllm"
FILE = "vllm.log"
KEEPS = frozenset(("arrival_s", "prompt_tokens", "output_tokens", "blocks", "model"))
RESOLUTION_NS = SECOND_NS
RELATIVE = True


def write(calls: Sequence[Call], path: Path) -> None:
    """Streamed answers have a line for each part too."""
    lines = startup("0.11.0")
    for number, call in enumerate(calls):
        lines += _of_call(call, f"(ApiServer_{number % 2} pid={4021 + number % 2}) ")
    path.write_text("\n".join(mix(lines)) + "\n")


def _of_call(call: Call, writer: str) -> list[tuple[int, str]]:
    access = f'{writer}INFO:     10.0.0.{len(call.id)}:51408 - "POST /v1/chat/completions HTTP/1.1" '
    if call.error in ("500", "503"):
        return [(call.end_ns, access + f"{call.error} Internal Server Error")]
    params = "params: SamplingParams(n=1, temperature=0.2, stop=['\\n', \"it's\"], max_tokens=64), "
    prompt = f"prompt: {render(call)!r}, {params}prompt_token_ids: None, prompt_embeds shape: None, "
    lines = [(call.arrival_ns, writer + received(call, prompt))]
    if call.error:
        reason = "was rejected due to a full waiting queue (log every 100 requests)"
        head = stamp(call.end_ns, "WARNING", "logger.py:90")
        return [*lines, (call.end_ns, f"{writer}{head}Request chatcmpl-{call.id} {reason}")]
    said = f"{writer}{stamp(call.end_ns, 'INFO', 'logger.py:71')}Generated response chatcmpl-{call.id}"
    if call.ttft_ns is not None:
        first = repr(call.answer.partition(" ")[0])
        lines.append(
            (
                call.end_ns,
                f"{said} (streaming delta): output: {first}, output_token_ids: [5], finish_reason: None",
            )
        )
        said += " (streaming complete)"
    reason = "stop" if call.ttft_ns is None else "streaming_complete"
    lines.append(
        (call.end_ns, f"{said}: output: {call.answer!r}, output_token_ids: None, finish_reason: {reason}")
    )
    lines.append((call.end_ns, access + "200 OK"))
    return lines
