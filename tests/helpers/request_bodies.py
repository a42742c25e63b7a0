"""Bodies of requests from a seed: a grammar of good ones, and what goes wrong in them.

Values of wrong types and ranges, numbers that no float or int64 holds, text of every kind, depth, size,
repeated and unknown keys, bytes that are no UTF-8, JSON that is none, bodies cut anywhere. Good ones are small:
they run.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

ROUTES = ("/v1/completions", "/v1/chat/completions")
HUGE = [
    "1e400",
    "-1e400",
    "1" * 400,
    "-0",
    "1e-400",
    str(2**63),
    str(-(2**63) - 1),
    str(2**64),
    "0.1e1",
    "9" * 5000,
]
NOT_JSON = [
    "NaN",
    "Infinity",
    "-Infinity",
    "0x10",
    "01",
    "+1",
    "1.",
    ".5",
    "'a'",
    "undefined",
    "True",
    "",
    "}",
    "\x00",
]
TEXTS = [
    "",
    " ",
    "a",
    "\x00",
    "\u2028",
    "\ufeff",
    "\u202e",
    "é",
    "日本",
    "🙂",
    "\\ud800",
    "\\udfff\\ud800",
    "\\u0000",
    "%s%n",
]
TEXTS += [
    "{{7*7}}",
    "{% for x in y %}",
    "../../etc/passwd",
    "<|im_end|>",
    "'; drop table",
    "\r\nx: y",
    "a" * 2000,
]
KEYS = [
    "prompt",
    "messages",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "seed",
    "n",
    "stream",
]
KEYS += ["stream_options", "stop", "model", "ignore_eos", "return_token_ids", "cache_salt", "logprobs", "echo"]
KEYS += ["top_logprobs", "logit_bias", "best_of", "suffix", "user", "tools", "tool_choice", "response_format"]
KEYS += ["presence_penalty", "frequency_penalty", "functions", "max_completion_tokens", "metadata", "__proto__"]


class Bodies:
    """`make` gives one body after the other, as a route and bytes."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def make(self) -> tuple[str, bytes]:
        """The next one; about one in twelve is good."""
        random = self.random
        route = random.choice(ROUTES)
        fields = {key: json.dumps(value) for key, value in self.good(route).items()}
        for _ in range(random.choice([0, 1, 1, 2, 2, 3, 4])):
            self.spoil(fields)
        pairs = [*fields.items()]
        if random.random() < 0.1:
            pairs.append((random.choice([*fields, "prompt"]), self.value()))
        if random.random() < 0.1:
            random.shuffle(pairs)
        text = "{" + ", ".join(f'"{key}": {value}' for key, value in pairs) + "}"
        return route, self.bytes_of(text)

    def good(self, route: str) -> dict[str, Any]:
        random = self.random
        body: dict[str, Any] = {"max_tokens": random.randrange(1, 9)}
        if route == ROUTES[0]:
            text = random.choice(["hello", "a b c", "x" * 50])
            body["prompt"] = random.choice([text, [text], [1, 2, 3], [[1, 2, 3]]])
        else:
            roles = ["system", "user", "assistant", "tool", "developer"]
            texts: list[Any] = ["hi", "", None, [{"type": "text", "text": "part"}]]
            count = random.randrange(1, 4)
            body["messages"] = [
                {"role": random.choice(roles), "content": random.choice(texts)} for _ in range(count)
            ]
        more: dict[str, Any] = {
            "temperature": random.choice([0, 0.5, 1, 2]),
            "top_p": random.choice([0.1, 1]),
            "top_k": random.choice([-1, 0, 5]),
            "seed": random.randrange(-(2**63), 2**63),
            "stream": random.random() < 0.5,
            "n": 1,
            "ignore_eos": True,
            "return_token_ids": True,
            "cache_salt": "tenant",
            "user": "somebody",
        }
        for key in random.sample([*more], random.randrange(4)):
            body[key] = more[key]
        return body

    def spoil(self, fields: dict[str, str]) -> None:
        """One field is changed, missing, renamed or too much."""
        random = self.random
        kind = random.randrange(6)
        known = random.choice([*fields]) if fields else "prompt"
        if kind == 0:
            fields.pop(known, None)
        elif kind == 1:
            fields[
                random.choice([known.upper(), known + " ", known[:-1], f"\\u00{ord(known[0]):02x}{known[1:]}"])
            ] = "1"
        elif kind in (2, 3):
            fields[random.choice(KEYS)] = self.value()
        else:
            fields[known] = self.value()

    def value(self) -> str:
        """JSON of any value, at times of none."""
        random = self.random
        kind = random.randrange(14)
        if kind == 0:
            return random.choice(HUGE)
        if kind == 1:
            return random.choice(NOT_JSON)
        if kind == 2:
            depth = random.choice([2, 30, 33, 200, 1000, 20_000])
            return "[" * depth + "]" * (depth if random.random() < 0.8 else depth - 1)
        if kind == 3:
            depth = random.choice([2, 31, 200, 2000])
            return '{"a":' * depth + "1" + "}" * depth
        if kind == 4:
            return json.dumps([random.randrange(-5, 300) for _ in range(random.choice([1, 17, 500, 5000]))])
        if kind == 5:
            return json.dumps(["s"] * random.choice([2, 5, 17, 3000]))
        if kind == 6:
            return '"' + random.choice(TEXTS) * random.choice([1, 1, 2, 60]) + '"'
        if kind == 7:
            return json.dumps(
                random.choice([[1, "a"], [True], [None], [[]], [[], []], [{}], [1.5], [[1], [2]], ["", ""]])
            )
        if kind == 8:
            return json.dumps({random.choice(KEYS): random.choice([None, 1, "x", [], {}])})
        if kind == 9:
            role = random.choice(["user", "king", 5, None, ""])
            return json.dumps(
                [{"role": role, "content": random.choice(["x", 5, [], {}, [{"type": "image_url"}]])}]
            )
        return random.choice(
            ["null", "true", "false", "0", "1", "-1", "2.5", "1e9", "65536", '""', "[]", "{}", '"x"']
        )

    def bytes_of(self, text: str) -> bytes:
        """The text in some encoding, whole or not."""
        random = self.random
        kind = random.random()
        if kind < 0.03:
            return text.encode(random.choice(["utf-16", "utf-32", "utf-16-le", "utf-8-sig"]), "surrogatepass")
        data = text.encode("utf-8", "surrogatepass")
        if kind < 0.09:
            return data[: random.randrange(len(data) + 1)]
        if kind < 0.13:
            place = random.randrange(len(data))
            return (
                data[:place]
                + random.choice([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\x00", b"\x80"])
                + data[place:]
            )
        if kind < 0.15:
            return random.choice(
                [data + data, data + b",", b"[" + data + b"]", b" " * 5000 + data, data + b"\n\n"]
            )
        if kind < 0.16:
            return random.randbytes(random.randrange(200))
        if kind < 0.163:  # seldom: they take their time to send
            return b'{"prompt": "' + b"x" * random.choice([200_000, 3_000_000, 17_000_000]) + b'"}'
        return data
