"""What a file may not contain, read from its syntax tree: code from data, shells, unsafe loaders, networks.

`findings` says what a source holds, by rule; which files may do what, and why, is the caller's list. Names are
followed through imports and their aliases. It proves nothing about code that hides on purpose; it stops habits.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

# Modules whose import is a finding, and its rule.
_MODULES = {
    **dict.fromkeys(
        ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"), "pickle"
    ),
    **dict.fromkeys(
        ("multiprocessing", "concurrent.futures.ProcessPoolExecutor"), "pickle"
    ),  # what they send is pickled
    **dict.fromkeys(
        ("urllib.request", "urllib3", "http.client", "requests", "httpx", "httpx2", "aiohttp"), "network"
    ),
    **dict.fromkeys(
        ("websockets", "ftplib", "smtplib", "telnetlib", "xmlrpc", "zmq", "grpc", "paramiko"), "network"
    ),
    **dict.fromkeys(("huggingface_hub", "openai", "anthropic", "boto3", "socket", "_socket"), "network"),
    "pty": "shell",
}
_CALLS = {
    **dict.fromkeys(
        ("eval", "exec", "compile", "__import__", "code.interact", "runpy.run_path"), "code from data"
    ),
    **dict.fromkeys(("os.system", "os.popen", "commands.getoutput"), "shell"),
    **dict.fromkeys(
        ("subprocess.getoutput", "subprocess.getstatusoutput", "asyncio.create_subprocess_shell"), "shell"
    ),
    **dict.fromkeys(
        ("yaml.unsafe_load", "yaml.unsafe_load_all", "yaml.full_load", "yaml.full_load_all"), "loader"
    ),
    **dict.fromkeys(("torch.load", "torch.jit.load", "torch.hub.load", "pandas.read_pickle"), "loader"),
    **dict.fromkeys(("jinja2.Environment", "jinja2.Template", "jinja2.environment.Environment"), "template"),
    **dict.fromkeys(("asyncio.open_connection", "asyncio.open_unix_connection"), "network"),
    "torch.distributed.TCPStore": "network",
}
# Methods by name, whatever the object: of sockets and event loops, and of process groups that pickle.
_METHODS = {
    **dict.fromkeys(("create_connection", "sock_connect", "create_datagram_endpoint", "connect_ex"), "network"),
    **dict.fromkeys(
        ("broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list"), "pickle"
    ),
    **dict.fromkeys(("send_object_list", "recv_object_list", "read_pickle", "to_pickle"), "pickle"),
}
_KEYWORDS = {"shell": "shell", "trust_remote_code": "code from data", "allow_pickle": "pickle"}
_SAFE_LOADERS = ("SafeLoader", "CSafeLoader", "BaseLoader")


class Finding(NamedTuple):
    """One place in a source."""

    rule: str
    line: int
    what: str


def findings(source: str) -> list[Finding]:
    """All places in `source` that a rule forbids."""
    tree = ast.parse(source)
    names = dict(_aliases(tree))
    found = []
    for node in ast.walk(tree):
        found += [Finding(rule, getattr(node, "lineno", 0), what) for rule, what in _of(node, names)]
    return sorted(set(found), key=lambda one: (one.line, one.rule, one.what))


def _aliases(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _of(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        yield from _imported([alias.name for alias in node.names])
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield from _imported([node.module, *(f"{node.module}.{alias.name}" for alias in node.names)])
    elif isinstance(node, ast.Assert) and not _narrows(node):
        yield "assert", ast.unparse(node.test)
    elif isinstance(node, ast.Call):
        yield from _called(node, _dotted(node.func, names))


def _imported(modules: list[str]) -> Iterator[tuple[str, str]]:
    for module in modules:
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            rule = _MODULES.get(".".join(parts[:end]))
            if rule and not module.startswith("multiprocessing.shared_memory"):
                yield rule, f"import {'.'.join(parts[:end])}"


def _narrows(node: ast.Assert) -> bool:
    """`assert x is not None`: tells the type checker something, and what follows fails without it too."""
    test = node.test
    if node.msg is not None or not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.IsNot):
        return False
    return (
        len(test.ops) == 1
        and isinstance(test.comparators[0], ast.Constant)
        and test.comparators[0].value is None
    )


def _dotted(node: ast.expr, names: dict[str, str]) -> str:
    """`a.b.c` of a name or attribute, its first part followed through the imports; "" of anything else."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return "." + ".".join(reversed(parts)) if parts else ""
    return ".".join([names.get(node.id, node.id), *reversed(parts)])


def _called(node: ast.Call, name: str) -> Iterator[tuple[str, str]]:
    name = name.removeprefix("builtins.")
    if name in ("yaml.load", "yaml.load_all"):
        loader = node.args[1:2] + [k.value for k in node.keywords if k.arg == "Loader"]
        if not loader or not ast.unparse(loader[0]).endswith(_SAFE_LOADERS):
            yield "loader", f"{name} without a safe loader"
    elif name in _CALLS:
        yield _CALLS[name], f"{name}(...)"
    elif name.startswith(("os.exec", "os.spawn", "os.posix_spawn")):
        yield "shell", f"{name}(...)"
    method = name.rpartition(".")[2] if "." in name else ""
    if method in _METHODS:
        yield _METHODS[method], f".{method}(...)"
    # Of a socket; a database's or a signal's `connect` takes no address.
    if method == "connect" and node.args and isinstance(node.args[0], ast.Tuple):
        yield "network", ".connect((host, port))"
    for keyword in node.keywords:
        rule = _KEYWORDS.get(keyword.arg or "")
        if rule and not (isinstance(keyword.value, ast.Constant) and not keyword.value.value):
            yield rule, f"{keyword.arg}={ast.unparse(keyword.value)}"
        if keyword.arg == "weights_only" and not (
            isinstance(keyword.value, ast.Constant) and keyword.value.value
        ):
            yield "loader", f"weights_only={ast.unparse(keyword.value)}"
