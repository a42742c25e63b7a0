"""Writers: each renders generated calls (`helpers.traffic`) as one log format does, for the round trip.

A writer is a module here with
- `FORMAT`: the name of the format,
- `write(calls, path)`: writes the log; it may reorder calls, drop what the format drops, and add the retries,
  duplicates and partial rows that the format is known for,
- `KEEPS`: the columns of the Trace that survive, out of `COLUMNS`,
and, where they differ from the defaults,
- `RESOLUTION_NS` of arrivals, `RELATIVE` for a log without a wall clock, `TOLERANCE_S` of latencies,
- `HAS(call)`: whether the log can have the call at all, `order(calls)`: of the rows of a log without times,
- `tokens(call)`: of the prompt as the format renders it, `scope(call)`: where its block ids mean something,
- `check_sums(trace, calls)`: for a log of sums, what to compare in place of columns,
- `session(calls)` (or another label): what the format calls them, `FILE`: the name of the file.
"""

from __future__ import annotations

COLUMNS = {
    # column of the Trace -> the path under `unknown` that says why it is missing
    "arrival_s": "arrivals",
    "prompt_tokens": "lengths.prompt",
    "output_tokens": "lengths.output",
    "cached_tokens": "sharing.cached_share",
    "blocks": "sharing",
    "ttft_s": "latency.ttft_s",
    "e2e_s": "latency.e2e_s",
    "model": "log.models",
    "client": "clients",
    "session": "sessions",
}
EVERYTHING = frozenset(COLUMNS)
