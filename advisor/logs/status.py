"""What became of a request, in words that are safe to keep and to show.

Loggers put codes and names of errors where others put whole messages, which may quote a prompt, a key or a
name. A status is kept if it is a number or made of words that APIs, gateways and engines use for outcomes;
whatever else a log says there is `error`.
"""

from __future__ import annotations

import re

OTHER = "error"
_LONGEST = 60
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")  # words of snake, kebab and camel case
_CODE = re.compile(r"-?\d{1,4}")
_FLAGS = "DC UF UO UT NR UC UH UR LR LH NC DT RL IH SI FI DI DPE OM DO UMSDR URX UPE UAEX"  # Envoy's
_WORDS = """
    ok success succeeded successful complete completed done finished stop stopped eos end length max maximum
    tokens token error errors errored failure failed fail fault exception raised http https status code type
    timeout timed out time deadline exceeded expired slow aborted abort cancelled canceled cancel
    disconnected disconnect closed reset broken pipe refused rejected reject denied deny forbidden
    unauthorized permission authentication auth authorization api key invalid missing bad unsupported
    unprocessable entity malformed request requests response argument arguments parameter param params value
    field json decode parse parsing schema validation format unicode rate limit limited limits quota
    insufficient billing hard budget reached too many large long few short high over capacity exhausted
    resource resources overloaded overload busy queue full service server internal unavailable not found
    gone conflict client connection connect connector network socket ssl tls dns host peer remote
    unreachable gateway proxy upstream downstream route cluster no healthy content filter filtered policy
    violation moderation flagged blocked safety refusal guardrail context window model engine worker
    instance replica dead died crashed stream streaming partial incomplete interrupted body chunk read write
    pool retry retries retryable fallback mid batch job pending in progress running unknown other none null
    runtime memory oom of os io system assertion recursion attribute index lookup name cuda nan empty prompt
    input output tool calls call function litellm openai anthropic azure vertex bedrock user team
"""
_KNOWN = frozenset(_WORDS.split())


def safe_status(name: str) -> str:
    """The status, or `error` where it is none of the known words."""
    if name in _FLAGS.split() or _CODE.fullmatch(name):
        return name
    parts = [part.lower() for part in _PART.findall(name)]
    known = len(name) <= _LONGEST and parts and all(part in _KNOWN or _CODE.fullmatch(part) for part in parts)
    return name if known and re.fullmatch(r"[\w .\-/]+", name, re.ASCII) else OTHER
