"""No file of ours runs code from data, starts a shell, loads what can run, or reaches a network it need not.

Read from the syntax trees of advisor, engine and benchmarks. Whoever needs an exception writes it here with the
reason. That a server reaches nobody is also seen at run time: tests/security/test_security_outbound.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from helpers.forbidden import Finding, findings

ROOT = Path(__file__).resolve().parent.parent.parent
TREES = ("advisor", "engine", "benchmarks")
# (file, rule) -> why it may.
MAY = {
    (
        "advisor/children.py",
        "pickle",
    ): "jobs to its own child and back, over anonymous pipes; no file, no socket",
    (
        "advisor/deploy/files.py",
        "template",
    ): "renders the templates that ship with the package, from their folder",
    ("advisor/deploy/launch.py", "network"): "binds ports to see which are free; connects to nothing",
    ("advisor/report/html/template.py", "template"): "renders the report's own templates, escaping everything",
    ("advisor/validation/wire.py", "network"): "the connections of the replay client",
    ("advisor/validation/faults.py", "network"): "asks the engine that it struck how it is",
    ("advisor/validation/forms.py", "network"): "tries out which requests an endpoint takes, before a replay",
    ("advisor/validation/probe.py", "network"): "the small requests of that",
    ("advisor/validation/outside.py", "network"): "round trips to the endpoint that is calibrated",
    ("advisor/validation/roofline.py", "network"): "waits for the null server that it started",
    ("benchmarks/client.py", "network"): "the clients that ours is measured beside",
    ("advisor/validation/endpoint.py", "network"): "asks the engine under test what it is, before a replay",
    ("advisor/advice/current/metrics.py", "network"): "reads the metrics page whose address the user gave",
    (
        "engine/fetch.py",
        "network",
    ): "downloads a model when `launch`, `demo` or `calibrate` say so, before serving",
    ("engine/kernels/compile.py", "pickle"): "compiles kernels ahead of time in children; no server imports it",
    ("engine/server/channel.py", "network"): "frames over one end of a socket pair",
    ("engine/server/connection.py", "network"): "names the type of the sockets it is given",
    ("engine/server/instance.py", "network"): "its stdin is one end of a socket pair",
    ("engine/server/supervisor.py", "network"): "makes the socket pairs",
    ("engine/transfer/connection.py", "network"): "frames between two instances",
    ("engine/transfer/line.py", "network"): "connects to the instance whose KV the router says to pull",
    ("engine/transfer/source.py", "network"): "binds a socket that other instances pull KV from",
    ("engine/server/process.py", "network"): "binds the port to listen on",
}


@cache
def tree() -> dict[str, list[Finding]]:
    """Findings by file of this checkout."""
    found = {}
    for name in TREES:
        for path in sorted((ROOT / name).rglob("*.py")):
            found[path.relative_to(ROOT).as_posix()] = findings(path.read_text(encoding="utf-8"))
    return found


def test_no_file_holds_what_no_file_may() -> None:
    bad = [
        f"{file}:{one.line}: {one.rule}: {one.what}"
        for file, found in tree().items()
        for one in found
        if (file, one.rule) not in MAY and not (one.rule == "assert" and file.startswith("benchmarks/"))
    ]
    assert not bad, "\n".join(bad)


def test_every_exception_is_still_needed() -> None:
    rules = defaultdict(set)
    for file, found in tree().items():
        rules[file] = {one.rule for one in found}
    assert [key for key in MAY if key[1] not in rules[key[0]]] == []


def test_the_serving_half_of_the_engine_may_only_listen() -> None:
    """What `engine.server` holds about networks is sockets to bind and nothing that connects.

    The channel takes over a socket that is connected, a pair's; `engine.transfer` connects to instances alone.
    """
    taken_over = {"engine/server/channel.py": {"asyncio.open_connection(...)"}}
    for file, found in tree().items():
        if file.startswith("engine/") and file != "engine/fetch.py":
            allowed = {"import socket"} | taken_over.get(file, set())
            assert {one.what for one in found if one.rule == "network"} <= allowed, file
    assert "asyncio.open_connection(sock=end)" in (ROOT / "engine/server/channel.py").read_text("utf-8")


def test_no_server_imports_what_may_pickle() -> None:
    """The exceptions of `pickle` stay out of the process that clients talk to."""
    program = "import sys, engine.server.__main__, engine.server.backend; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    )
    pickling = {file.removesuffix(".py").replace("/", ".") for file, rule in MAY if rule == "pickle"}
    assert pickling.isdisjoint(loaded.stdout.split())


BAD = [
    ("import pickle", "pickle"),
    ("import pickle as p", "pickle"),
    ("from pickle import loads", "pickle"),
    ("from _pickle import Unpickler", "pickle"),
    ("def f():\n    import marshal", "pickle"),
    ("import dill, os", "pickle"),
    ("import shelve", "pickle"),
    ("from multiprocessing import Queue", "pickle"),
    ("from concurrent.futures import ProcessPoolExecutor", "pickle"),
    ("import multiprocessing.connection", "pickle"),
    ("import torch.distributed as d\nd.broadcast_object_list([1])", "pickle"),
    ("import numpy as np\nnp.load(f, allow_pickle=True)", "pickle"),
    ("import pandas as pd\npd.read_pickle('x')", "pickle"),
    ("eval('1')", "code from data"),
    ("import builtins\nbuiltins.eval('1')", "code from data"),
    ("from builtins import exec as run\nrun('1')", "code from data"),
    ("exec(compile(text, 'x', 'exec'))", "code from data"),
    ("__import__(name)", "code from data"),
    ("AutoModel.from_pretrained(x, trust_remote_code=True)", "code from data"),
    ("f(trust_remote_code=flag)", "code from data"),
    ("import os\nos.system('ls')", "shell"),
    ("from os import system as s\ns('ls')", "shell"),
    ("import os as o\no.popen('ls')", "shell"),
    ("import os\nos.execvp('ls', [])", "shell"),
    ("import subprocess\nsubprocess.run('ls', shell=True)", "shell"),
    ("import subprocess\nsubprocess.run('ls', shell=flag)", "shell"),
    ("import subprocess as s\ns.getoutput('ls')", "shell"),
    ("import asyncio\nasyncio.create_subprocess_shell('ls')", "shell"),
    ("import pty", "shell"),
    ("import yaml\nyaml.load(f)", "loader"),
    ("import yaml\nyaml.load(f, yaml.Loader)", "loader"),
    ("import yaml\nyaml.load_all(f, Loader=yaml.FullLoader)", "loader"),
    ("from yaml import load\nload(f)", "loader"),
    ("import yaml\nyaml.unsafe_load(f)", "loader"),
    ("import torch\ntorch.load(f)", "loader"),
    ("from torch import load as l\nl(f, weights_only=False)", "loader"),
    ("assert user_is_allowed", "assert"),
    ("assert x is not None, 'no x'", "assert"),
    ("assert isinstance(x, int)", "assert"),
    ("import jinja2\njinja2.Environment().from_string(t)", "template"),
    ("from jinja2 import Template as T\nT(text)", "template"),
    ("import urllib.request", "network"),
    ("from urllib import request", "network"),
    ("import requests", "network"),
    ("from httpx import Client", "network"),
    ("import aiohttp.client", "network"),
    ("def f():\n    from socket import socket", "network"),
    ("import asyncio\nasyncio.open_connection('h', 1)", "network"),
    ("loop.create_connection(P, 'h', 1)", "network"),
    ("s.connect(('h', 1))", "network"),
    ("import huggingface_hub", "network"),
    ("import zmq.asyncio", "network"),
]
GOOD = [
    "import urllib.parse",
    "from concurrent.futures import ThreadPoolExecutor",
    "from urllib.parse import urlsplit",
    "import re\nre.compile('x')",
    "model.eval()",
    "import yaml\nyaml.safe_load(f)",
    "import yaml\nyaml.load(f, Loader=yaml.CSafeLoader)",
    "import subprocess\nsubprocess.run(['ls'], shell=False)",
    "assert x is not None",
    "from jinja2.sandbox import ImmutableSandboxedEnvironment\nImmutableSandboxedEnvironment()",
    "signal.connect(handler)",
    "import torch\ntorch.tensor(f)",
    "from multiprocessing.shared_memory import SharedMemory",
    "x = 'eval(pickle)'  # exec",
]


@pytest.mark.parametrize(("source", "rule"), BAD)
def test_what_is_forbidden_is_found(source: str, rule: str) -> None:
    assert rule in {one.rule for one in findings(source)}


@pytest.mark.parametrize("source", GOOD)
def test_what_looks_like_it_is_not(source: str) -> None:
    assert findings(source) == []
