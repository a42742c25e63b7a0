"""LangSmith's own client: the runs that its OpenAI wrapper posts, taken by a server on this machine."""

from __future__ import annotations

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from common import Job

LIMITS = {  # what the service tells the SDK
    "use_multipart_endpoint": False,
    "scale_up_qsize_trigger": 1000,
    "scale_up_nthreads_limit": 1,
    "scale_down_nempty_trigger": 4,
    "size_limit": 100,
    "size_limit_bytes": 20_000_000,
}


class _Runs:
    """Runs by id: the SDK posts a run at its start and patches it at its end."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.lock = threading.Lock()

    def take(self, body: dict[str, Any]) -> None:
        with self.lock:
            for run in [*body.get("post", ()), *body.get("patch", ())]:
                known = self.runs.setdefault(run["id"], {})
                known.update({key: value for key, value in run.items() if value is not None})


def main() -> None:
    """Send the chats through the wrapper, one after another."""
    job, runs = Job.of_argv(), _Runs()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer({"batch_ingest_config": LIMITS})

        def do_POST(self) -> None:
            runs.take(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self._answer({})

        do_PATCH = do_POST  # noqa: N815 - the name that http.server looks for

        def log_message(self, *_: object) -> None: ...

        def _answer(self, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            self.send_response(202 if self.command != "GET" else 200)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {
        "LANGSMITH_TRACING": "true",
        "LANGSMITH_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "LANGSMITH_API_KEY": "unused",
        "LANGSMITH_DISABLE_RUN_COMPRESSION": "true",
    }
    import openai
    from langsmith import Client
    from langsmith.wrappers import wrap_openai

    tracer = Client()
    plain = openai.OpenAI(base_url=f"{job.url}/v1", api_key="unused", max_retries=0)
    client = wrap_openai(plain, tracing_extra={"client": tracer})
    for messages in job.chats():
        answer = client.chat.completions.create(model=job.model, messages=messages, max_tokens=8, temperature=0)
        job.keep(answer.usage)
    tracer.flush()
    server.shutdown()
    (job.out / "runs.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs.runs.values()))
    job.finish()


if __name__ == "__main__":
    main()
