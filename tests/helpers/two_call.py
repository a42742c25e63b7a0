"""The two-call protocol as vllm-router 0.1.17 was recorded to speak it (docs/two-call.md), and a stand-in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import httpx2

SECRET = "0123456789abcdef" * 4
ASK = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
# What the router adds to every completion.
ADDED = {
    "echo": False,
    "no_stop_trim": False,
    "skip_special_tokens": True,
    "return_hidden_states": False,
}


def first_call(body: Mapping[str, Any]) -> dict[str, Any]:
    """The prefill call for a client's body."""
    first = {key: value for key, value in body.items() if key != "stream_options"}
    first |= ADDED | {"stream": False, "max_tokens": 1, "min_tokens": 1, "kv_transfer_params": ASK}
    if "max_completion_tokens" in body:
        first["max_completion_tokens"] = 1
    return first


def second_call(body: Mapping[str, Any], given: object) -> dict[str, Any]:
    """The decode call: the client's body, with what the prefill server gave, if it gave something."""
    return {**body, **ADDED} | ({} if given is None else {"kv_transfer_params": given})


class StandIn:
    """A router in front of a prefill and a decode server. `between` is called between the two calls."""

    def __init__(self, prefill: httpx2.Client, decode: httpx2.Client) -> None:
        self.prefill, self.decode = prefill, decode

    def post(
        self, path: str, body: Mapping[str, Any], between: Callable[[], object] = lambda: None
    ) -> httpx2.Response:
        """What the client gets."""
        first = self.prefill.post(path, json=first_call(body))
        if first.status_code != 200:
            return first
        between()
        return self.decode.post(path, json=second_call(body, first.json()["kv_transfer_params"]))
