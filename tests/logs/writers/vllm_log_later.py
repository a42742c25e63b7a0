"""vLLM from 0.11.2 on: no prompts at level INFO, engine statistics every ten seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers.traffic import START_NS, Call
from helpers.vllm_lines import SECOND_NS, mix, received, stamp, startup

FORMAT = "vllm"
FILE = "vllm.log"
KEEPS = frozenset(("arrival_s", "model"))
RESOLUTION_NS = SECOND_NS
RELATIVE = True
_WRITER = "(APIServer pid=4021) "


def write(calls: Sequence[Call], path: Path) -> None:
    """Failed calls are access lines only."""
    lines = startup("0.11.2")
    for call in calls:
        access = f'{_WRITER}INFO:     10.0.0.9:51408 - "POST /v1/chat/completions HTTP/1.1" '
        if call.error:
            lines.append((call.end_ns, f"{access}{call.error} Error"))
            continue
        params = "params: SamplingParams(n=1, temperature=0.2, stop=[], max_tokens=64), "
        added = stamp(call.arrival_ns, "INFO", "async_llm.py:382")
        lines += [
            (call.arrival_ns, _WRITER + received(call, params)),
            (call.arrival_ns, f"{_WRITER}{added}Added request chatcmpl-{call.id}-a8a65d16."),
            (call.end_ns, f"{access}200 OK"),
        ]
    for second in range(10, (calls[-1].end_ns - START_NS) // SECOND_NS, 10):
        at = START_NS + second * SECOND_NS
        lines.append((at, f"{_WRITER}{stamp(at, 'INFO', 'loggers.py:257')}{_STATISTICS}"))
    path.write_text("\n".join(mix(lines)) + "\n")


_STATISTICS = (
    "Engine 000: Avg prompt throughput: 54.1 tokens/s, Avg generation throughput: 17.0 tokens/s, "
    "Running: 3 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.2%, Prefix cache hit rate: 41.5%"
)
