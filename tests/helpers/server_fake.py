"""A server with no model: the real router, instance processes, core and uvicorn; the executor makes tokens up.

Run as a program it behaves as `python -m engine.server` does, so that signals and sockets are tested on real
processes; with `instance` it is an instance. `model.path` in its engine.yaml says how: `sleep:0.01` makes a
step take 10 ms, `fail:2` raises in the first step that decodes two requests, `device:NAME` is what it runs on.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine.config import EngineConfig
from engine.server.__main__ import arguments, options_of
from engine.server.backend import Backend
from engine.server.codec import TextCodec
from engine.server.instance import Load
from engine.server.instance import main as instance_main
from engine.server.messages import Start
from engine.server.process import serve
from engine.step import PREVIOUS, Step, StepResult, StepRow, TokenLogprobs

VOCAB = 256
EOS = 0


class BytesCodec:
    """A token is a byte; a multi-byte character is incomplete until its last token."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    def stream(self) -> BytesStream:
        return BytesStream()


class BytesStream:
    """Holds the bytes of an incomplete character back."""

    def __init__(self) -> None:
        self._held = b""

    def push(self, token_id: int) -> str:
        self._held += bytes([token_id])
        try:
            text, self._held = self._held.decode(), b""
        except UnicodeDecodeError:
            return ""
        return text

    def flush(self) -> str:
        return self._held.decode(errors="replace")


class FakeExecutor:
    """Answers with the bytes of `text`, by position in the output, over and over."""

    def __init__(self, text: str, *, sleep_s: float = 0.0, fail_at: int | None = None) -> None:
        self._text = text.encode()
        self._sleep_s = sleep_s
        self._fail_at = fail_at

    def submit(self, step: Step) -> FakeHandle:
        return FakeHandle(self, step)

    def run(self, step: Step) -> StepResult:
        if self._sleep_s:
            time.sleep(self._sleep_s)
        if sum(not row.prefill for row in step.rows) == self._fail_at:
            raise RuntimeError("the fake executor was told to fail")
        ends = (row.start + len(row.tokens) for row in step.rows)
        tokens = (self._text[end % len(self._text)] for end in ends)
        drawn = tuple(t if r.sample else None for t, r in zip(tokens, step.rows, strict=True))
        if all(row.sampling.logprobs is None for row in step.rows):
            return StepResult(step.id, drawn)
        pairs = zip(step.rows, drawn, strict=True)
        return StepResult(step.id, drawn, tuple(made_up(row, token) for row, token in pairs))


def made_up(row: StepRow, token: int | None) -> TokenLogprobs | None:
    """The token has -0.5, the ids from 65 on the other places, each one less."""
    if token is None or row.sampling.logprobs is None:
        return None
    others = ((65 + n, -1.5 - n) for n in range(row.sampling.logprobs - 1))
    return TokenLogprobs(-0.5, ((token, -0.5), *others)[: row.sampling.logprobs])


class TellsAhead(FakeExecutor):
    """Answers `a` in a step that was made before the token of the one in flight was known, else `k`."""

    def run(self, step: Step) -> StepResult:
        said = (ord("a" if row.tokens == (PREVIOUS,) else "k") for row in step.rows)
        return StepResult(step.id, tuple(said))


class FakeHandle:
    """A step that runs when its result is asked for."""

    def __init__(self, executor: FakeExecutor, step: Step) -> None:
        self._executor, self._step = executor, step

    def result(self) -> StepResult:
        return self._executor.run(self._step)


def load_fake(start: Start, config: EngineConfig, probed: Callable[[str], None]) -> Backend:
    probed("none")
    pool = config.pools[start.pool]
    kind, _, value = (config.model.path or "").partition(":")
    executor = FakeExecutor(
        "h\u00e9llo ",
        sleep_s=float(value) if kind == "sleep" else 0.0,
        fail_at=int(value) if kind == "fail" else None,
    )
    if kind == "device":
        executor = TellsAhead("")
    kv_tokens = pool.kv_tokens or 65_536
    return Backend(
        executor=executor,
        eos_token_ids=frozenset({EOS}),
        num_blocks=kv_tokens // pool.block_size + 1,
        vocab_size=VOCAB,
        max_len=4096,
        dtype="none",
        devices=(f"fake:{start.first_device}",),
        threads=1,
        kv_tokens_planned=kv_tokens,
        device=value if kind == "device" else "cpu",
        overlap=kind == "device" and value != "cpu",
    )


def program(module: str) -> tuple[str, ...]:
    """How a helper of this folder runs as a program: -c, because this folder is on no path of a new process."""
    tests = str(Path(__file__).resolve().parent.parent)
    code = f"import sys; sys.path.insert(0, {tests!r}); from helpers.{module} import main; sys.exit(main())"
    return (sys.executable, "-c", code)


def run(module: str, load: Load, codec: TextCodec) -> int:
    """The router, or with `instance` as its argument an instance, of a helper that brings its own backend."""
    if sys.argv[1:] == ["instance"]:
        return instance_main(load)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    given = arguments().parse_args()
    options = replace(options_of(given), program=(*program(module), "instance"))
    return serve(given.config, options, lambda *_args, **_more: codec)


def main() -> int:
    return run("server_fake", load_fake, BytesCodec())


if __name__ == "__main__":
    sys.exit(main())
