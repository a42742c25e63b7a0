"""Runs in litellm's environment: records calls with its mock answers, prints the recorder's counts as JSON.

Argument: the trace to write. Nothing is sent.
"""

import asyncio
import contextlib
import json
import sys
import time

import litellm
from litellm.integrations.custom_logger import CustomLogger

from advisor.logs.recorder import LiteLLMRecorder

recorder = LiteLLMRecorder(sys.argv[1])
assert isinstance(recorder, CustomLogger)
litellm.callbacks = [recorder]


def call(number: int, **more: object) -> dict:
    """The arguments of a call."""
    messages = [
        {"role": "system", "content": "canary " * 200},
        {"role": "user", "content": f"canary question {number} " * 20},
    ]
    metadata = {"session_id": "canary-session", "user_api_key_hash": "canary-key"}
    return {
        "model": "gpt-4o",
        "messages": messages,
        "mock_response": "canary answer",
        "metadata": metadata,
        **more,
    }


async def calls() -> None:
    """Eight calls, eight streams and a failure."""
    for number in range(8):
        await litellm.acompletion(**call(number))
        async for _ in await litellm.acompletion(**call(number, stream=True)):
            pass
    with contextlib.suppress(litellm.exceptions.InternalServerError):
        await litellm.acompletion(**call(9, mock_response=Exception("canary failure")))
    await asyncio.sleep(2)  # its logging runs behind


asyncio.run(calls())
for number in range(8):
    litellm.completion(**call(number))
    for _ in litellm.completion(**call(number, stream=True)):
        pass
time.sleep(2)
recorder.writer.close()
sys.stdout.write(json.dumps(recorder.writer.counts))
