"""A fake router process: the ready line, /health and /metrics of a fleet, and no instances behind it.

Run as `python -m engine.server` is; `model.path` of its engine.yaml is a folder where it leaves its arguments
and the emulation that it was given. CPU seconds grow by one for the router at each look, by two for instances.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from engine.config_file import read_config

PROGRAM = (
    sys.executable,
    "-c",
    f"import sys; sys.path[:0] = {[str(Path(__file__).resolve().parent.parent)]!r}; "
    "from helpers.fake_router import main; sys.exit(main())",
)


class _Handler(BaseHTTPRequestHandler):
    looks = 0

    def do_GET(self) -> None:
        body, page = b"{}", self.path == "/metrics"
        if page:
            type(self).looks += 1
            names = self.server.names  # type: ignore[attr-defined]
            cpu = {"router": 1.0, **dict.fromkeys(names, 2.0)}
            body = "".join(
                f'advise_cpu_seconds{{process="{name}"}} {seconds * self.looks}\n'
                for name, seconds in cpu.items()
            ).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser()
    for flag in ("--config", "--port", "--step-log", "--fault", "--load", "--parent-pid", "--emulate"):
        parser.add_argument(flag)
    parser.add_argument("--oversubscribe", action="store_true")
    given = parser.parse_args()
    config = read_config(Path(given.config))
    kept = Path(config.model.path or "")
    (kept / "arguments.json").write_text(json.dumps(sys.argv[1:]))
    if given.emulate:
        shutil.copy(given.emulate, kept / "emulation.yaml")
    members = [pool for pool in config.pools for _ in range(pool.count)]
    seen: dict[str, int] = {}
    instances = []
    for index, pool in enumerate(members):
        number = seen[pool.role] = seen.get(pool.role, -1) + 1
        instances.append(
            {"name": f"{pool.role}-{number}", "role": pool.role, "pid": os.getpid() + index + 1,
             "devices": [f"cpu:{index}"], "dtype": "none", "kv_tokens": 992}
        )  # fmt: skip
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.names = [one["name"] for one in instances]  # type: ignore[attr-defined]
    ready = {
        "url": f"http://127.0.0.1:{server.server_port}", "model": "fake", "dtype": "none",
        "devices": [d for one in instances for d in one["devices"]], "threads": len(members), "max_len": 4096,
        "vocab_size": 256, "kv_tokens_planned": 1000, "kv_tokens_actual": 992, "load_seconds": 0.1,
        "pid": os.getpid(), "instances": instances, "oversubscribed": given.oversubscribe,
        "transport": "shared_memory" if len({pool.role for pool in members}) > 1 else None,
        "emulated": {"gpu": "h100-sxm", "time_scale": 4.0} if given.emulate else None,
    }  # fmt: skip
    threading.Thread(target=server.serve_forever, daemon=True).start()
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    print(json.dumps(ready), flush=True)  # noqa: T201 - the ready line
    over.wait()
    return 0
