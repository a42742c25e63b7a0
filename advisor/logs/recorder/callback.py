"""The LiteLLM callback: what the gateway tells of a finished call becomes a row.

litellm is not imported until a recorder is made, and not needed then. Calls that LiteLLM answered from its own
response cache never reached an engine, and are counted but not recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from advisor.logs.recorder.exchange import Counts, Exchange, count_usage
from advisor.logs.recorder.writer import TraceWriter
from advisor.logs.text import TextEncoder

_ROUTES = {
    "completion": "/v1/chat/completions",
    "acompletion": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "atext_completion": "/v1/completions",
    "responses": "/v1/responses",
    "aresponses": "/v1/responses",
    "anthropic_messages": "/v1/messages",
}
_SESSIONS = ("session_id", "conversation_id", "thread_id")
_CLIENTS = ("user_api_key_hash", "user_api_key")
_encode = msgspec.json.Encoder(enc_hook=str).encode


class LiteLLMRecorder:
    """Records to `path` whatever it is told of: `litellm.callbacks = [LiteLLMRecorder("trace.jsonl")]`.

    In a proxy's configuration: `litellm_settings: {callbacks: my_module.recorder}`. The options are those of
    `Recorder`.
    """

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> LiteLLMRecorder:
        """A CustomLogger too, where litellm is installed: it calls the methods of no other class."""
        try:
            logger = import_module("litellm.integrations.custom_logger").CustomLogger
        except ImportError:
            return super().__new__(cls)
        kind = cls if issubclass(cls, logger) else type(cls.__name__, (cls, logger), {})
        recorder: LiteLLMRecorder = object.__new__(kind)
        return recorder

    def __init__(
        self,
        path: str | Path = "trace.jsonl",
        *,
        tokenizer: TextEncoder | None = None,
        most_body_bytes: int = 4 << 20,
        most_units: int = 2_000_000,
        most_file_bytes: int = 256 << 20,
        daily: bool = True,
    ) -> None:
        super().__init__()
        self.writer = TraceWriter(
            path,
            tokenizer=tokenizer,
            most_units=most_units,
            most_file_bytes=most_file_bytes,
            daily=daily,
        )
        self._most_body_bytes = most_body_bytes

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """A call made without asyncio has ended."""
        self._record(kwargs, response_obj, start_time, end_time, "ok")

    def log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """A call made without asyncio has failed."""
        self._record(kwargs, response_obj, start_time, end_time, "error")

    async def async_log_success_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """A call has ended; a stream with all of its chunks put together."""
        self._record(kwargs, response_obj, start_time, end_time, "ok")

    async def async_log_failure_event(
        self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """A call has failed."""
        self._record(kwargs, response_obj, start_time, end_time, "error")

    def _record(self, kwargs: Any, response: Any, start: Any, end: Any, status: str) -> None:
        try:
            exchange = self._exchange(kwargs, response, start, end, status)
            if exchange is not None:
                self.writer.put(exchange)
        except Exception as error:  # litellm would log it with the call's arguments
            self.writer.lose(error)

    def _exchange(
        self, kwargs: Mapping[str, Any], response: Any, start: datetime, end: datetime, status: str
    ) -> Exchange | None:
        route = _ROUTES.get(str(kwargs.get("call_type") or "acompletion"))
        if route is None:
            return None
        if kwargs.get("cache_hit"):
            self.writer.skip("answered from LiteLLM's response cache")
            return None
        streamed = bool(kwargs.get("stream"))
        first = kwargs.get("completion_start_time")
        # Of calls that are not streamed litellm puts the end there.
        ttft_s = (first - start).total_seconds() if streamed and isinstance(first, datetime) else None
        metadata = _metadata(kwargs)
        return Exchange(
            route=route,
            arrival_ns=round(start.timestamp() * 1e9),
            body=self._body(kwargs),
            status=status,
            streamed=streamed,
            counts=_counts(response),
            ttft_s=ttft_s,
            e2e_s=(end - start).total_seconds(),
            client=_digest(metadata, _CLIENTS),
            session=_digest(metadata, _SESSIONS),
        )

    def _body(self, kwargs: Mapping[str, Any]) -> bytes | None:
        """The request as JSON, at once: the caller may go on to change its list of messages."""
        asked = kwargs.get("optional_params")
        tools = asked.get("tools") if isinstance(asked, Mapping) else None
        prompt = kwargs.get("messages") or kwargs.get("input")
        key = "messages" if isinstance(prompt, list) and isinstance(prompt[0], Mapping) else "prompt"
        body = _encode({"model": kwargs.get("model"), key: prompt, "tools": tools})
        return body if len(body) <= self._most_body_bytes else None


def _counts(response: Any) -> Counts:
    usage = response.get("usage") if isinstance(response, Mapping) else getattr(response, "usage", None)
    if usage is not None and hasattr(usage, "model_dump"):
        usage = usage.model_dump()
    return count_usage(usage) if isinstance(usage, Mapping) else Counts()


def _metadata(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    params = kwargs.get("litellm_params")
    metadata = params.get("metadata") if isinstance(params, Mapping) else None
    return metadata if isinstance(metadata, Mapping) else {}


def _digest(metadata: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """A digest of the first of these values that is there, in its place."""
    value = next((value for name in names if (value := metadata.get(name))), None)
    return hash(("litellm", value)) if isinstance(value, str) else None
