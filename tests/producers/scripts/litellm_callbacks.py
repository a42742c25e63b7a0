"""LiteLLM's own callback: the standard logging payload, and the row of its spend log table."""

from __future__ import annotations

import json
import os
import time
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "true"  # it would ask the network otherwise

import litellm
from common import Job
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy.spend_tracking.spend_tracking_utils import get_logging_payload


class Keep(CustomLogger):  # type: ignore[misc]
    """Writes what LiteLLM hands to a logger."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        self.job = job
        self.seen = 0

    def log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        """Called in a thread of LiteLLM's after the answer."""
        self._append("payload.jsonl", kwargs["standard_logging_object"])
        self._append("spend.jsonl", get_logging_payload(kwargs, response_obj, start_time, end_time))
        self.seen += 1

    def _append(self, name: str, row: Any) -> None:
        with (self.job.out / name).open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")


def main() -> None:
    """Send the chats, one after another."""
    job = Job.of_argv()
    keep = Keep(job)
    litellm.callbacks = [keep]
    for messages in job.chats():
        answer = litellm.completion(
            model=f"openai/{job.model}", api_base=f"{job.url}/v1", api_key="unused", messages=messages,
            max_tokens=8, temperature=0, user="c-1",
        )  # fmt: skip
        job.keep(answer.usage)
    deadline = time.monotonic() + 20
    while keep.seen < len(job.answers) and time.monotonic() < deadline:
        time.sleep(0.05)
    job.finish()


if __name__ == "__main__":
    main()
