"""`--current URL`: metrics pages as vLLM and SGLang write them, served by a local server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from advisor.advice.current import Around, read_current
from advisor.advice.current.metrics import parse_metrics, read_metrics
from engine.errors import InputError

# The label set of a public vLLM page (AIBrix documentation), with its 81767 blocks of 16 tokens.
VLLM = """\
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",cpu_offload_gb="0",enable_prefix_caching="False",\
gpu_memory_utilization="0.9",num_cpu_blocks="9362",num_gpu_blocks="81767",sliding_window="None"} 1.0
vllm:num_requests_running{model_name="Qwen/Qwen2.5-Coder-1.5B-Instruct"} 0.0
"""
SGLANG = """\
# HELP sglang:max_total_num_tokens Maximum total number of tokens in the KV cache pool.
sglang:max_total_num_tokens{engine_type="unified",model_name="m",tp_rank="0"} 144870.0
sglang:page_size{engine_type="unified",model_name="m",tp_rank="0"} 64.0
"""


class _Page(BaseHTTPRequestHandler):
    pages: dict[str, tuple[int, str]]

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path, (404, ""))
        self.send_response(status)
        if status == 302:
            self.send_header("Location", body)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def pages(**served: tuple[int, str]) -> Iterator[str]:
    handler = type("Handler", (_Page,), {"pages": {f"/{path}": page for path, page in served.items()}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_vllm_page_gives_blocks_times_block_size() -> None:
    with pages(metrics=(200, VLLM)) as url:
        current = read_current(url)
    one = current.pools[0]
    assert (current.stack, current.model) == ("vllm", "Qwen/Qwen2.5-Coder-1.5B-Instruct")
    assert (one.kv_tokens, one.block_size, one.prefix_cache) == (81_767 * 16, 16, False)
    assert current.memory_fraction == 0.9


def test_vllm_says_its_own_tokens_where_blocks_are_of_another_kind() -> None:
    # A hybrid model: 745 blocks of 832 tokens, and a cache of 619479 tokens.
    labels = 'block_size="832",cache_dtype="bfloat16",kv_cache_size_tokens="619479",num_gpu_blocks="745"'
    current = parse_metrics(f"vllm:cache_config_info{{{labels}}} 1.0\n", "page", Around())
    assert (current.pools[0].kv_tokens, current.kv_dtype) == (619_479, "bfloat16")


def test_engines_of_one_page_are_instances() -> None:
    rows = [
        f'vllm:cache_config_info{{engine="{i}",block_size="16",num_gpu_blocks="100"}} 1.0' for i in range(4)
    ]
    one = parse_metrics("\n".join(rows), "page", Around()).pools[0]
    assert (one.count, one.kv_tokens) == (4, 1600)


def test_sglang_page() -> None:
    current = parse_metrics(SGLANG, "page", Around())
    one = current.pools[0]
    assert (current.stack, current.model, one.kv_tokens, one.block_size) == ("sglang", "m", 144_870, 64)


@pytest.mark.parametrize(
    ("page", "match"),
    [
        ("", "how an engine is configured"),
        ("<html>hello</html>", "how an engine is configured"),
        ("python_info 1.0\n", "how an engine is configured"),
        ("vllm:num_requests_running 1\n", "no vllm:cache_config_info"),
        ("sglang:num_running_reqs 1\n", "no sglang:max_total_num_tokens"),
        ('vllm:cache_config_info{block_size="x"} 1\n', "not a whole number"),
    ],
)
def test_bad_pages_are_input_errors(page: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        parse_metrics(page, "page", Around())


def test_a_redirect_is_not_followed_and_an_error_is_said() -> None:
    with pages(metrics=(302, "http://127.0.0.1:1/metrics"), other=(500, "")) as url:
        with pytest.raises(InputError, match="answers 302"):
            read_current(f"{url}/metrics")
        with pytest.raises(InputError, match="answers 500"):
            read_current(f"{url}/other")


def test_a_server_that_does_not_answer_is_an_input_error() -> None:
    with pages() as url:
        pass  # its port is closed now
    with pytest.raises(InputError, match="no metrics page answers"):
        read_current(url)


def test_a_silent_server_times_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match="no metrics page answers"):
            read_metrics(url, Around(), timeout_s=0.05)


@pytest.mark.parametrize("url", ["http://user:sesame42@host/metrics", "http://host/metrics?token=sesame42"])
def test_credentials_in_the_address_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InputError) as error:
        read_current(url)
    assert "sesame42" not in f"{error.value.message} {error.value.where} {error.value.why} {error.value.hint}"
