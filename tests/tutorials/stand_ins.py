"""Stand-ins for programs that a tutorial calls: kubectl and psql, which print recorded files.

The files are written by the writers of the tests of log formats. A port-forward leads to a fake vLLM.
"""

from __future__ import annotations

import asyncio
import datetime
import sys
from pathlib import Path

from aiohttp import web
from helpers.fake_server import Program, _Server
from helpers.traffic import Call, make_calls
from logs.writers import litellm_spend, vllm_log

from advisor.logs.recorder import LiteLLMRecorder

TESTS = Path(__file__).resolve().parent.parent
REQUESTS = 400
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm, labels: {app: vllm}}
spec:
  replicas: 2
  selector: {matchLabels: {app: vllm}}
  template:
    metadata: {labels: {app: vllm}}
    spec:
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.11.0
          command: [vllm, serve, Qwen/Qwen3-8B]
          args: [--max-num-seqs, "128", --enable-log-requests, --enable-log-outputs]
          env: [{name: VLLM_LOGGING_LEVEL, value: DEBUG}]
          resources: {limits: {nvidia.com/gpu: "1"}}
"""
KUBECTL = """\
#!/bin/sh
case "$*" in
  "set env deployment/vllm VLLM_LOGGING_LEVEL=DEBUG") echo "deployment.apps/vllm env updated" ;;
  "logs deployment/vllm") cat "{recorded}/vllm.log" ;;
  "logs deployment/vllm --since=24h") cat "{recorded}/today.log" ;;
  "get deployment vllm -o yaml") cat "{recorded}/deployment.yaml" ;;
  "port-forward deployment/vllm "*) exec env PYTHONPATH="{tests}" "{python}" "{this}" "${{3%:*}}" ;;
  *) echo "not recorded: kubectl $*" >&2; exit 1 ;;
esac
"""
PSQL = """\
#!/bin/sh
[ "$1" = "$DATABASE_URL" ] && [ "$2 $3" = "-At -c" ] || {{ echo "not recorded: psql $*" >&2; exit 1; }}
case "$4" in
  *'row_to_json(t) FROM "LiteLLM_SpendLogs" t'*) cat "{recorded}/spend.jsonl" ;;
  *) echo "not recorded: $4" >&2; exit 1 ;;
esac
"""


def write_kubectl(programs: Path, recorded: Path) -> None:
    """A kubectl that knows a deployment of vLLM, its log, and the log of another day of the same traffic."""
    recorded.mkdir()
    vllm_log.write(make_calls(REQUESTS), recorded / "vllm.log")
    vllm_log.write(make_calls(REQUESTS, seed=5), recorded / "today.log")
    (recorded / "deployment.yaml").write_text(DEPLOYMENT)
    _program(programs / "kubectl", KUBECTL, recorded)


def write_psql(programs: Path, recorded: Path) -> None:
    """A psql that knows the spend logs of a LiteLLM proxy."""
    recorded.mkdir()
    litellm_spend.write(make_calls(REQUESTS), recorded / "spend.jsonl")
    _program(programs / "psql", PSQL, recorded)


def _program(path: Path, text: str, recorded: Path) -> None:
    filled = text.format(recorded=recorded, tests=TESTS, python=sys.executable, this=Path(__file__).resolve())
    path.write_text(filled)
    path.chmod(0o755)


def record(recorder: LiteLLMRecorder, calls: list[Call]) -> None:
    """Tell a recorder of calls as LiteLLM does, then close its file."""

    async def tell() -> None:
        for call in calls:
            start, end = (
                datetime.datetime.fromtimestamp(ns / 1e9, datetime.UTC) for ns in (call.arrival_ns, call.end_ns)
            )
            usage = {"prompt_tokens": call.prompt_tokens, "completion_tokens": call.output_tokens}
            metadata = {"session_id": call.session, "user_api_key_hash": call.client}
            kwargs = {
                "call_type": "acompletion", "model": call.model, "messages": list(call.messages),
                "litellm_params": {"metadata": metadata}, "optional_params": {},
            }  # fmt: skip
            await recorder.async_log_success_event(kwargs, {"usage": usage}, start, end)

    asyncio.run(tell())
    recorder.writer.close()


def _moment(time_ns: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time_ns / 1e9, datetime.UTC)


def _forward(port: int) -> None:
    """A fake vLLM at a port."""
    program = Program(
        ttft_s=0.05,
        tpot_s=0.01,
        cached="hits",
        metrics=["vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"],
        card={"id": "Qwen/Qwen3-8B", "owned_by": "vllm"},
        pages={"/version": {"version": "0.11.0"}},
    )
    web.run_app(_Server(program).app(), host="127.0.0.1", port=port, print=None)


if __name__ == "__main__":
    _forward(int(sys.argv[1]))
