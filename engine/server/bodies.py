"""The bodies of requests: what a client may ask, checked before any work is done.

Owns the two request models. A field that would change the output and that this engine does not serve is
refused, never ignored; other unknown fields are ignored and counted. No message quotes a prompt.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from engine.server.errors import ApiError
from engine.server.limits import MAX_DEPTH, is_too_deep
from engine.server.two_call import KvTransferParams

MAX_PROMPTS = 16
MAX_CHOICES = 32
MAX_SALT_BYTES = 128
_INT64 = 2**63
# Fields of OpenAI's API that change the output, each with the values that ask for nothing.
NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "logit_bias": ({},),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
}

Prompt = str | tuple[int, ...]


def _is_ids(value: Any) -> bool:
    # `type is int` because bool is an int to isinstance, and True is no token id.
    return isinstance(value, list) and all(type(token) is int for token in value)


def _is_same(asked: Any, value: Any) -> bool:
    """Equal, and not a bool for a number: to Python, True is 1."""
    return bool(asked == value) and isinstance(asked, bool) == isinstance(value, bool)


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """A string, a list of token ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list) and value:
        if type(value[0]) is int and _is_ids(value):
            return (tuple(value),)
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"must be at most {MAX_PROMPTS} prompts")
        if all(isinstance(prompt, str) for prompt in value):
            return tuple(value)
        if all(_is_ids(prompt) for prompt in value):
            return tuple(tuple(prompt) for prompt in value)
    raise ValueError("must be a string, a list of token ids, or a list of one of them")


def _stops(value: Any) -> Any:
    if isinstance(value, str):
        return (value,) if value else ()
    return tuple(value) if isinstance(value, list) else value


_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXT = {"type": "string", "minLength": 1}
_PROMPT_SCHEMA = {
    "anyOf": [
        _TEXT,
        _IDS,
        {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": MAX_PROMPTS},
        {"type": "array", "items": _IDS, "minItems": 1, "maxItems": MAX_PROMPTS},
    ]
}
_STOP = {"type": "string", "minLength": 1, "maxLength": 64}
_STOP_SCHEMA = {
    "anyOf": [
        {"type": "string", "maxLength": 64},
        {"type": "array", "items": _STOP, "maxItems": 4},
        {"type": "null"},
    ]
}
Prompts = Annotated[tuple[Prompt, ...], BeforeValidator(_prompts), WithJsonSchema(_PROMPT_SCHEMA)]
Stop = Annotated[str, Field(min_length=1, max_length=64)]
Stops = Annotated[tuple[Stop, ...], Field(max_length=4), BeforeValidator(_stops), WithJsonSchema(_STOP_SCHEMA)]


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True)


class StreamOptions(_Body):
    """Options that hold only with `stream`."""

    include_usage: bool = Field(False, description="end the stream with a chunk that holds the usage")


class GenerationBody(_Body):
    """What both endpoints share. Names that OpenAI has not (`top_k`, `cache_salt`, ...) are vLLM's."""

    model_config = ConfigDict(extra="allow")

    model: str | None = Field(None, description="the served model's name, or nothing")
    max_tokens: int | None = Field(
        None, ge=1, lt=_INT64, description="most output tokens; null: what the context leaves"
    )
    min_tokens: int = Field(
        0, ge=0, lt=_INT64, description="no end of sequence and no stop string before so many output tokens"
    )
    ignore_eos: bool = Field(False, description="go on behind the end of sequence")
    temperature: float = Field(1.0, ge=0, le=2, allow_inf_nan=False, description="0 is greedy")
    top_p: float = Field(
        1.0, gt=0, le=1, allow_inf_nan=False, description="draw from the fewest tokens that reach it"
    )
    top_k: int = Field(0, ge=-1, lt=2**31, description="draw from the likeliest so many; 0 and -1: all")
    seed: int | None = Field(
        None, ge=-_INT64, lt=_INT64, description="same seed, same text, whatever the batch; null: random"
    )
    n: int = Field(1, ge=1, le=8, description="choices of each prompt; choice 0 draws with the seed itself")
    stop: Stops = Field((), description="the output ends before any of these; up to 4, of up to 64 characters")
    include_stop_str_in_output: bool = Field(False, description="the output ends behind the stop string")
    stream: bool = Field(False, description="server-sent events, one a token")
    stream_options: StreamOptions | None = Field(None, description="`include_usage`")
    return_token_ids: bool = Field(False, description="`token_ids` with every choice")
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=MAX_SALT_BYTES,
        description="shares cached prompts with the same salt only; up to 128 bytes",
    )
    kv_transfer_params: KvTransferParams | None = Field(
        None, description="the two-call protocol of vllm-router: docs/two-call.md"
    )

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_served(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name, nothing in NOT_SERVED.items():
            asked = values.get(name)
            if asked is not None and not any(_is_same(asked, value) for value in nothing):
                raise ValueError(f"{name} is not served by this engine")
        # A client that sends null means the default, as OpenAI's API has it.
        return {name: value for name, value in values.items() if value is not None and name not in NOT_SERVED}

    @field_validator("cache_salt")
    @classmethod
    def _salt_is_short(cls, salt: str | None) -> str | None:
        if salt is not None and len(salt.encode()) > MAX_SALT_BYTES:
            raise ValueError(f"must be at most {MAX_SALT_BYTES} bytes")
        return salt

    @model_validator(mode="after")
    def _options_fit_together(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def ignored_fields(self) -> int:
        """Top-level fields that nobody knows."""
        return len(self.model_extra or ())

    @property
    def top(self) -> int | None:
        """With each token its logprob and those of so many likeliest ones; None: no logprobs."""
        raise NotImplementedError


B = TypeVar("B", bound=GenerationBody)


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: Prompts = Field(description="text or token ids, or a list of up to 16 of one of them")
    max_tokens: int | None = Field(16, ge=1, lt=_INT64, description="most output tokens")
    logprobs: int | None = Field(
        None, ge=0, le=20, description="each token's logprob, and those of so many likeliest ones"
    )

    @model_validator(mode="after")
    def _choices_are_few(self) -> CompletionBody:
        if len(self.prompt) * self.n > MAX_CHOICES:
            raise ValueError(f"prompts times n must be at most {MAX_CHOICES}")
        return self

    @property
    def top(self) -> int | None:
        return self.logprobs


class TextPart(_Body):
    """One part of a message; this engine reads text only."""

    type: Literal["text"]
    text: str


class Message(_Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None

    def plain(self) -> dict[str, str]:
        """What a chat template reads: the role and the text. `developer` is the newer name of `system`."""
        content = self.content or ""
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class ChatBody(GenerationBody):
    """The body of POST /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1, description="the conversation, text only")
    max_completion_tokens: int | None = Field(
        None, ge=1, lt=_INT64, description="the newer name of `max_tokens`; it wins"
    )
    logprobs: bool = Field(False, description="each token's logprob")
    top_logprobs: int = Field(0, ge=0, le=20, description="with `logprobs`: those of so many likeliest tokens")

    @model_validator(mode="after")
    def _logprobs_are_asked_for(self) -> ChatBody:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs: true")
        return self

    @property
    def top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


def parse(kind: type[B], raw: bytes) -> B:
    """Read a body. Raises ApiError 400 that names the field."""
    if is_too_deep(raw):
        raise ApiError(400, f"the body is nested deeper than {MAX_DEPTH} levels")
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{where}: {message}" if where else message, param=where or None) from None
