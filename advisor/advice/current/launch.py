"""The engine that a command starts, seen through docker, shells, wrappers and images. Nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from advisor.advice.current.model import Stack
from advisor.advice.current.shell import base_name, keep, split

Program = Stack | Literal["router", "trtllm-split"]

_MODULES: dict[str, Program] = {
    "vllm.entrypoints.openai.api_server": "vllm",
    "vllm.entrypoints.api_server": "vllm",
    "vllm.entrypoints.cli.main": "vllm",
    "dynamo.vllm": "vllm",
    "sglang.launch_server": "sglang",
    "dynamo.sglang": "sglang",
    "mii.entrypoints.openai_api_server": "mii",
    "mii.entrypoints.api_server": "mii",
    "sglang_router.launch_router": "router",
}
_IMAGES: tuple[tuple[str, Stack], ...] = (
    ("vllm", "vllm"),
    ("sglang", "sglang"),
    ("text-generation-inference", "tgi"),
    ("tensorrt-llm", "trtllm"),
    ("trtllm", "trtllm"),
)
_STARTS_ALONE = ("vllm", "tgi")  # whose images start the engine when only flags are given
_SHELLS = ("bash", "sh", "zsh", "dash", "ash")
_ENGINES = ("docker", "podman", "nerdctl")
_DOCKER_SWITCHES = (
    *("--detach", "--interactive", "--tty", "--rm", "--privileged", "--init", "--read-only", "--publish-all"),
    *(
        "--no-healthcheck",
        "--oom-kill-disable",
        "--sig-proxy",
        "--quiet",
        "--disable-content-trust",
        "--replace",
    ),
)
_OTHER_PROGRAM = re.compile(r"(?:ba|z|da|a)?sh|sleep|python[\d.]*|tail|.*\.(?:sh|py)")
_MOST_NESTED = 6
_VERSION = re.compile(r":v?(\d+\.\d+(?:\.\d+)?(?:\.?(?:post|rc)\d+)?)")
_INSTALLED = re.compile(r"(vllm|sglang|tensorrt[_-]llm|deepspeed-mii)(?:\[[\w,-]*\])?==(\d[\w.]*)")


@dataclass(frozen=True, slots=True)
class Launch:
    """One started program: the words behind its name, its variables, and what its wrapping says."""

    program: Program
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    version: str | None = None
    devices: int | None = None
    count: int = 1
    files: Mapping[str, str] = field(default_factory=dict)


def find_launches(text: str) -> list[Launch]:
    """Every engine and router that shell text starts. Raises InputError where it cannot be split."""
    return _of_text(text, {}, None, 0)


def image_version(image: str) -> str | None:
    """The version in an image's tag."""
    match = _VERSION.search(image)
    return match.group(1) if match else None


def _of_text(text: str, env: Mapping[str, str], image: str | None, depth: int) -> list[Launch]:
    script = split(text, env)
    found: list[Launch] = []
    installed: str | None = None
    for command in script.commands:
        pinned = [m for m in map(_INSTALLED.search, command.words) if m]
        installed = pinned[0].group(2) if pinned else installed
        for one in launches_of(command.words, command.env, image, depth + 1, alone=False):
            files = {**script.files, **one.files}
            version = one.version or installed
            found.append(
                Launch(one.program, one.words, one.env, version, one.devices or devices_of(one.env), 1, files)
            )
    return found


def launches_of(
    words: Sequence[str], env: Mapping[str, str], image: str | None, depth: int = 0, *, alone: bool = True
) -> list[Launch]:
    """The engines that one command starts; `image`: of its container, whose own start counts where `alone`."""
    if depth > _MOST_NESTED:
        return []
    version = image_version(image) if image else None
    for at, word in enumerate(words):
        name, rest = base_name(word), list(words[at + 1 :])
        if name in _ENGINES and "run" in rest[:2]:
            return _docker(rest[rest.index("run") + 1 :], depth)
        if name in _SHELLS and rest and re.fullmatch(r"-\w*c", rest[0]) and len(rest) > 1:
            return _of_text(rest[1], env, image, depth)
        found = _program(name, rest)
        if found is not None:
            return [Launch(found[0], tuple(rest[found[1] :]), env, version, devices_of(env))]
    stack = _stack_of(image)
    # The image's own start: flags only, or a model in front of them.
    if alone and stack in _STARTS_ALONE and not (words and _OTHER_PROGRAM.fullmatch(base_name(words[0]))):
        return [Launch(stack, tuple(words), env, version, devices_of(env))]
    return []


def _program(name: str, rest: Sequence[str]) -> tuple[Program, int] | None:
    """The program that `name` starts, and how many of the words behind it belong to its name."""
    following = rest[0] if rest else ""
    if name == "-m" and following in _MODULES:
        return _MODULES[following], 2 if following.endswith("cli.main") else 1
    if name in ("vllm", "sglang") and following == "serve":
        return ("vllm" if name == "vllm" else "sglang"), 1
    if name == "trtllm-serve":
        if following == "disaggregated":
            return "trtllm-split", 1
        return "trtllm", 1 if following == "serve" else 0
    if name == "text-generation-launcher":
        return "tgi", 0
    if name in ("vllm-router", "sglang-router") or (name == "smg" and following == "launch"):
        return "router", 1 if name == "smg" else 0
    if name == "api_server.py" or name == "launch_server.py":
        return ("vllm" if name == "api_server.py" else "sglang"), 0
    return None


def _stack_of(image: str | None) -> Stack | None:
    if image is None:
        return None
    name = image.lower().split("@")[0]
    return next((stack for part, stack in _IMAGES if part in name), None)


def devices_of(env: Mapping[str, str]) -> int | None:
    """GPUs named by CUDA_VISIBLE_DEVICES."""
    named = env.get("CUDA_VISIBLE_DEVICES", "")
    return len(named.split(",")) if re.fullmatch(r"\d+(,\d+)*", named) else None


def _docker(words: Sequence[str], depth: int) -> list[Launch]:
    """The engine behind `docker run`."""
    env: dict[str, str] = {}
    entry: list[str] = []
    devices: int | None = None
    rest = list(words)[::-1]
    while rest and rest[-1].startswith("-"):
        name, equals, value = rest.pop().partition("=")
        if name in _DOCKER_SWITCHES or re.fullmatch(r"-[ditP]+", name):
            continue
        if not name.startswith("--") and len(name) > 2:  # -eNAME=VALUE
            name, value, equals = name[:2], name[2:] + equals + value, "="
        if not equals:
            value = rest.pop() if rest else ""
        if name in ("-e", "--env"):
            key, _, setting = value.partition("=")
            env.update(keep({key: setting}))
        elif name == "--entrypoint":
            entry = [value]
        elif name == "--gpus":
            devices = _gpus(value)
    if not rest:
        return []
    image = rest.pop()
    found = launches_of([*entry, *rest[::-1]], env, image, depth + 1)
    return [Launch(o.program, o.words, o.env, o.version, o.devices or devices, 1, o.files) for o in found]


def _gpus(value: str) -> int | None:
    plain = value.strip("\"'")
    if re.fullmatch(r"[0-9]{1,3}", plain):
        return int(plain) or None
    match = re.fullmatch(r"\"?device=([\w-]+(?:,[\w-]+)*)\"?", plain)
    return len(match.group(1).split(",")) if match else None
