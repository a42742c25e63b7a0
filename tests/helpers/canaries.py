"""Canaries: strings that are nowhere else, put wherever a log may hold something private, and looked for after.

Logs of several formats are made of them. `other` canaries make logs of the same structure: equal lengths,
letters and digits at equal places, equal where they were equal. What differs in what is written comes from
content. Names of models are no canaries: they are shown by design.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tokenizers
from helpers import otlp
from helpers.gateways import iso
from helpers.traffic import START_NS
from tokenizers import models, pre_tokenizers

REQUESTS = 84
MODEL = "qwen3-8b"
_START_S = START_NS / 1e9
_MARK = "zq"  # how every canary begins
_CIPHER = str.maketrans(string.ascii_lowercase + string.digits, "qwertyuiopasdfghjklzxcvbnm" + "3140598267")


class Canaries:
    """An endless supply, the same for the same seed. `other` ones have other letters and digits throughout."""

    def __init__(self, seed: int, *, other: bool = False) -> None:
        self._rng = random.Random(seed)
        self._cipher = _CIPHER if other else {}
        self.roles: dict[str, str] = {}  # canary -> where it was put

    def __call__(self, role: str) -> str:
        """A new one, to be put somewhere."""
        kinds = [string.digits if place % 3 == 1 else string.ascii_lowercase for place in range(10)]
        word = _MARK + "".join(map(self._rng.choice, kinds)).translate(self._cipher)
        if word in self.roles:
            return self(role)
        self.roles[word] = role
        return word

    def count(self, role: str) -> int:
        """How many were put there."""
        return list(self.roles.values()).count(role)

    def found(self, data: bytes) -> set[str]:
        """Where canaries had been put that are in the data: as they are, encoded or hashed."""
        plain = {match.decode().lower() for match in re.findall(rb"(?i)zq[a-z0-9]{10}", data)}
        found = {self.roles[word] for word in plain if word in self.roles}
        codes = {match[:16].decode().lower() for match in re.findall(rb"[0-9a-fA-F]{16,}", data)}
        for word, role in self.roles.items():
            if not codes.isdisjoint(_in_hex(word.encode())):
                found.add(f"{role}, hashed or in hex")
            if any(form in data for form in _in_base64(word.encode())):
                found.add(f"{role}, in base64")
        return found


def _in_hex(word: bytes) -> Iterator[str]:
    yield word.hex()[:16]
    for name in ("sha256", "sha1", "md5", "blake2b", "blake2s"):
        yield hashlib.new(name, word).hexdigest()[:16]


def _in_base64(word: bytes) -> Iterator[bytes]:
    """The signs that do not depend on what stands around the word."""
    for shift in range(3):
        text = base64.b64encode(b"\0" * shift + word)
        yield text[4 if shift else 0 : (len(word) + shift) // 3 * 4]


def openai_lines(say: Canaries) -> bytes:
    """Requests and responses of an OpenAI-compatible service, with headers, keys and tools."""
    tools = [{"function": {"name": say("tool name"), "description": say("tool text")}} for _ in range(3)]
    rows = []
    for row, messages in enumerate(_chats(say)):
        message, in_words, code = say("error message"), f"bad {say('error message')} given", say("error code")
        request = {"model": MODEL, "messages": messages, "tools": tools[: row % 2 * 3]}
        answer = {"role": "assistant", "content": say("output")}
        rows.append({
            "ts": _START_S + row * 0.7, "duration_ms": 900 + row, "status": 200, "user": say("user id"),
            "session_id": say("session"), "path": f"/v1/{say('route')}/chat/completions",
            "headers": {"authorization": f"Bearer {say('key')}", "x-forwarded-for": say("header")},
            "error": [None, message, in_words, {"code": code}][row % 4],
            "request": request | {"metadata": {say("metadata name"): say("metadata")}},
            "response": {
                "choices": [{"message": answer}],
                "usage": {"prompt_tokens": 400 + row, "completion_tokens": 5},
            },
        })  # fmt: skip
    return _lines(rows)


def litellm(say: Canaries) -> bytes:
    """LiteLLM's standard payload."""
    tools = [[{"function": {"name": say("tool name"), "description": say("tool text")}}] for _ in range(3)]
    rows = [
        {
            "id": say("request id"), "trace_id": say("session"), "call_type": "acompletion", "stream": True,
            "status": "success", "prompt_tokens": 400, "completion_tokens": 5, "total_tokens": 405,
            "startTime": _START_S + row, "endTime": _START_S + row + 2.5, "model": MODEL, "model_group": MODEL,
            "completionStartTime": _START_S + row + 0.5, "response_time": 0.5, "end_user": say("user id"),
            "metadata": {
                "user_api_key_hash": say("key"), "user_api_key_team_id": say("team"),
                "requester_metadata": {"session_id": say("session"), "note": say("metadata")},
            },
            "messages": messages, "response": {"choices": [{"message": {"content": say("output")}}]},
            "error_str": [None, say("error message")][row % 2], "error_information": None,
            "model_parameters": {"stream": True, "tools": tools[row % 3]},
            "request_tags": [say("tag")], "api_base": f"http://{say('host')}/v1",
        }
        for row, messages in enumerate(_chats(say))
    ]  # fmt: skip
    return _lines(rows)


def otlp_spans(say: Canaries) -> bytes:
    """OpenTelemetry's GenAI spans."""
    batches = []
    tools = [[{"name": say("tool name"), "description": say("tool text")}] for _ in range(3)]
    for row, messages in enumerate(_chats(say)):
        parts = [{"role": m["role"], "parts": [{"type": "text", "content": m["content"]}]} for m in messages]
        answer = [{"role": "assistant", "parts": [{"type": "text", "content": say("output")}]}]
        more = {
            "gen_ai.conversation.id": say("session"), "user.id": say("user id"),
            "gen_ai.input.messages": json.dumps(parts), "gen_ai.output.messages": json.dumps(answer),
            "gen_ai.tool.definitions": json.dumps(tools[row % 3]),
            "http.request.header.authorization": say("key"), "server.address": say("host"),
            "error.type": [None, say("error code")][row % 2], say("attribute name"): say("attribute"),
        }  # fmt: skip
        span = otlp.chat(f"{row:016x}", (400, 5), at=row, until=row + 2, trace=f"{row:032x}", more=more)
        span["status"] = [{}, {"code": 2, "message": say("error message")}][row % 2]
        batches.append(otlp.batch(span))
    return _lines(batches)


def langfuse(say: Canaries) -> bytes:
    """Langfuse's export, as one array."""
    rows = [
        {
            "id": say("request id"), "traceId": say("session"), "type": "GENERATION", "name": say("name"),
            "startTime": iso(START_NS + row * 10**9), "endTime": iso(START_NS + (row + 2) * 10**9),
            "model": MODEL, "input": {"messages": messages}, "output": say("output"), "tags": [say("tag")],
            "level": ["DEFAULT", "ERROR"][row % 2], "statusMessage": say("error message"),
            "sessionId": say("session"), "userId": say("user id"), "metadata": {say("name"): say("metadata")},
            "usageDetails": {"input": 400, "output": 5, "total": 405},
        }
        for row, messages in enumerate(_chats(say))
    ]  # fmt: skip
    return json.dumps(rows).encode()


def vllm_text(say: Canaries) -> bytes:
    """vLLM's text log with prompts and answers."""
    lines = []
    for row, messages in enumerate(_chats(say, 2 * REQUESTS)):
        stamp, name = f"09-14 08:{row // 60:02}:{row % 60:02}", say("request id")
        lines += [
            f"INFO {stamp} [logger.py:40] Received request {name}: prompt: {_rendered(messages)!r}, params: "
            f"SamplingParams(n=1, stop=['{say('stop word')}']), prompt_token_ids: None, lora_request: None.",
            f"INFO {stamp} [logger.py:71] Generated response {name}: output: '{say('output')} and so on', "
            f"output_token_ids: None, finish_reason: {['stop', say('finish reason')][row % 2]}",
            f'INFO:     {say("host")}:51 - "POST /{say("route")} HTTP/1.1" 200 OK',
            f"ERROR {stamp} [x.py:1] {say('error message')}",
        ]
    return "".join(f"{line}\n" for line in lines).encode()


def sglang_text(say: Canaries) -> bytes:
    """SGLang's text log."""
    lines = []
    for row, messages in enumerate(_chats(say, 2 * REQUESTS)):
        stamp, name = f"[2026-09-14 08:{row // 60:02}:{row % 60:02}]", say("request id")
        request = f"GenerateReqInput(rid='{name}', text={_rendered(messages)!r}, lora_path='{say('adapter')}')"
        reason = f"{{'type': '{['stop', say('finish reason')][row % 2]}', 'message': '{say('error message')}'}}"
        counts = "'prompt_tokens': 400, 'completion_tokens': 5, 'cached_tokens': 3, 'e2e_latency': 0.5"
        meta = f"{{'id': '{name}', 'finish_reason': {reason}, {counts}}}"
        lines += [
            f"{stamp} Receive: obj={request}",
            f"{stamp} Finish: obj={request}, out={{'text': '{say('output')}', 'meta_info': {meta}}}",
        ]
    return "".join(f"{line}\n" for line in lines).encode()


def csv_rows(say: Canaries) -> bytes:
    """CSV under a header, as an export of a database has it."""
    names = "created_at,user_id,session_id,api_key,route,model,prompt,completion,input_tokens,output_tokens"
    rows = [f"{names},error,note"]
    for row, messages in enumerate(_chats(say)):
        prompt = "\n".join(message["content"] for message in messages)
        error = ["", say("error message"), f"no {say('error message')} here"][row % 3]
        cells = [iso(START_NS + row * 10**9), say("user id"), say("session"), say("key"), f"/v1/{say('route')}"]
        cells += [MODEL, f'"{prompt}"', say("output"), "400", "5", error, f'"{say("note")}, ""{say("note")}"""']
        rows.append(",".join(cells))
    return "".join(f"{row}\n" for row in rows).encode()


def token_ids(say: Canaries) -> bytes:
    """Completions of token ids: a number of four digits for each letter."""
    rows = [
        {
            "ts": _START_S + row, "user": say("user id"), "session_id": say("session"),
            "path": f"/v1/{say('route')}", "status": 200, "response": {"usage": {"completion_tokens": 5}},
            "request": {"model": MODEL, "prompt": [1000 + sign for sign in _rendered(messages).encode()]},
        }
        for row, messages in enumerate(_chats(say, 2 * REQUESTS))
    ]  # fmt: skip
    return _lines(rows)


LOGS: dict[str, Callable[[Canaries], bytes]] = {
    "openai": openai_lines, "litellm": litellm, "otlp": otlp_spans, "langfuse": langfuse, "vllm": vllm_text,
    "sglang": sglang_text, "csv": csv_rows, "token-ids": token_ids,
}  # fmt: skip


def unreadable(say: Canaries) -> bytes:
    """Lines that cannot be used, each in a way of its own."""
    rows: list[Any] = [
        {"ts": say("time"), "prompt": say("prompt")},
        {"ts": _START_S, "prompt": say("prompt"), "prompt_tokens": say("count")},
        {"ts": _START_S, "status": say("status"), "error": say("error message"), "prompt_tokens": 0},
        {"ts": _START_S, "prompt": [say("prompt"), say("prompt")]},
        [say("prompt")],
        say("prompt"),
    ]
    lines = [json.dumps(row) for row in rows]
    lines += [
        f'{{"ts": "{say("time")}", "prompt": "{say("prompt")}',
        f"{say('text')} {say('text')}",
        say("text"),
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def byte_tokenizer(folder: Path) -> Path:
    """A model folder whose tokens are bytes: what has equal lengths as text has equal lengths in tokens."""
    folder.mkdir()
    alphabet = {sign: place for place, sign in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = tokenizers.Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{{ tools }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "config.json").write_text("{}")
    return folder


def _chats(say: Canaries, count: int = REQUESTS) -> list[list[dict[str, str]]]:
    """Chats over three system prompts that are long enough to be shared in blocks."""
    systems = [" ".join(say("system prompt") for _ in range(24)) for _ in range(3)]
    return [
        [
            {"role": "system", "content": systems[row % 3]},
            {"role": "user", "content": " or ".join(say("prompt") for _ in range(2 + row % 5))},
        ]
        for row in range(count)
    ]


def _rendered(messages: list[dict[str, str]]) -> str:
    return "".join(f"<|{message['role']}|>\n{message['content']}\n" for message in messages)


def _lines(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()
