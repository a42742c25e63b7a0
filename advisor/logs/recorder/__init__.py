"""Writes a Trace while a service runs: an ASGI middleware and a LiteLLM callback, without text.

    app.add_middleware(Recorder, path="trace.jsonl")    # FastAPI, Starlette, any ASGI application
    litellm.callbacks = [LiteLLMRecorder("trace.jsonl")]

`advise analyze trace*.jsonl` reads what they write. docs/collecting-logs.md says what becomes known and what is
exposed. Neither starlette nor litellm is imported here.
"""

from advisor.logs.recorder.asgi import Recorder
from advisor.logs.recorder.callback import LiteLLMRecorder

__all__ = ["LiteLLMRecorder", "Recorder"]
