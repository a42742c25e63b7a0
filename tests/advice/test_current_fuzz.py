"""Whatever is given to `--current`, the only way to fail is an InputError, and no secret comes out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.advice.current import Around, read_text
from advisor.advice.current.metrics import parse_metrics
from advisor.advice.current.read import _TABLES
from engine.errors import InputError

HUSH = "hf_QwErTy123456"
STARTS = (
    "vllm serve",
    "python -m vllm.entrypoints.openai.api_server",
    "sglang serve",
    "trtllm-serve",
    "trtllm-serve disaggregated",
    "text-generation-launcher",
    "python -m mii.entrypoints.api_server",
    "docker run vllm/vllm-openai:v0.9",
    "smg launch",
)
FLAGS = sorted({name for table in _TABLES.values() for name in table.names})
KNOBS = sorted({name for table in _TABLES.values() for name in table.knobs})

values = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.sampled_from(
        ["", "8k", "auto", "true", "false", "-1", "0", "1e400", "nan", "inf", "{}", '{"kv_role": 1}', "$X"]
    ),
    st.text(max_size=12),
)
flag_names = st.one_of(st.sampled_from(FLAGS), st.sampled_from(KNOBS), st.text(max_size=12))
flags = st.tuples(flag_names, values).map(lambda pair: f"--{pair[0]}={pair[1]}")
words = st.one_of(flags, flag_names.map(lambda name: f"--{name}"), values)


def attempt(text: str, around: Around = Around()) -> str:  # noqa: B008
    """The whole outcome as text."""
    try:
        return repr(read_text(text, around, "given"))
    except InputError as error:
        return f"{error.message} {error.where} {error.why} {error.hint}"


@given(st.sampled_from(STARTS), st.lists(words, max_size=8))
@settings(max_examples=400, deadline=None)
def test_random_arguments_never_crash(start: str, arguments: list[str]) -> None:
    attempt(f"{start} {' '.join(arguments)}")


@given(st.text(max_size=200))
@settings(max_examples=200, deadline=None)
def test_random_text_never_crashes(text: str) -> None:
    attempt(text)
    attempt(f"mii.serve({text})")


@given(
    st.sampled_from(STARTS),
    st.lists(words, max_size=4),
    st.sampled_from(["--api-key", "--hf-token", "--made-up"]),
)
@settings(max_examples=100, deadline=None)
def test_a_secret_never_comes_out(start: str, arguments: list[str], flag: str) -> None:
    arguments = [argument for argument in arguments if "'" not in argument and '"' not in argument]
    assert HUSH not in attempt(f"HF_TOKEN={HUSH} {start} {flag}={HUSH} {' '.join(arguments)}")


trees = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KNOBS, "x"]), inner, max_size=4)
    ),
    max_leaves=12,
)
shapes = st.dictionaries(
    st.sampled_from(
        [
            "apiVersion",
            "kind",
            "spec",
            "metadata",
            "services",
            "pools",
            "context_servers",
            "generation_servers",
            *KNOBS,
        ]
    ),
    trees,
    max_size=6,
)


@given(shapes)
@settings(max_examples=200, deadline=None)
def test_random_files_never_crash(tree: dict[str, Any]) -> None:
    attempt(yaml.safe_dump(tree))


KEYS = ("replicas", "template", "spec", "containers", "command", "args", "env", "image", "resources", "limits")
objects = st.recursive(
    st.one_of(
        st.none(), st.integers(), st.text(max_size=5), st.just("vllm serve m"), st.just("vllm/vllm-openai")
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@given(st.sampled_from(["Deployment", "Pod", "LeaderWorkerSet", "DynamoGraphDeployment"]), objects)
@settings(max_examples=200, deadline=None)
def test_random_manifests_never_crash(kind: str, spec: Any) -> None:
    attempt(yaml.safe_dump({"apiVersion": "v1", "kind": kind, "spec": spec}))


@given(
    st.lists(
        st.sampled_from(["vllm:", "sglang:", "cache_config_info", "{", "}", 'block_size="16"', " 1\n", ","])
    )
)
@settings(max_examples=100, deadline=None)
def test_random_metrics_never_crash(parts: list[str]) -> None:
    with suppress(InputError):
        parse_metrics("".join(parts), "page", Around())


def test_deep_nesting_is_an_input_error() -> None:
    for text in ("[" * 20_000, "services: " + "{a: " * 20_000, "mii.serve(" + "(" * 20_000, "a: &a [*a]\n"):
        attempt(text)
    attempt("bash -c " * 50 + "'vllm serve m'")
    attempt("vllm serve m --" + "no-" * 5000 + "x")
