"""The official OpenAI client against this engine: request and response lines, as a proxy logs them."""

from __future__ import annotations

import json
import time

import openai
from common import Job


def main() -> None:
    """Send the chats, one after another."""
    job = Job.of_argv()
    client = openai.OpenAI(base_url=f"{job.url}/v1", api_key="unused", max_retries=0)
    with (job.out / "requests.jsonl").open("w") as file:
        for messages in job.chats():
            request = {"model": job.model, "messages": messages, "max_tokens": 8, "temperature": 0}
            sent = time.time()
            answer = client.chat.completions.create(**request)
            row = {
                "ts": sent,
                "duration_s": time.time() - sent,
                "request": request,
                "response": answer.model_dump(),
            }
            file.write(json.dumps(row) + "\n")
            job.keep(answer.usage)
    job.finish()


if __name__ == "__main__":
    main()
