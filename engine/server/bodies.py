"""The bodies of requests: what a client may ask, checked before any work is done.

Owns the two request models and the OpenAI error form. A field that would change the output and that this engine
does not serve is refused, never ignored; fields that cannot change it are ignored. No message quotes a prompt.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

_INT64 = 2**63
# Fields of OpenAI's API that change the output, each with the values that ask for nothing.
_NOT_SERVED: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "logit_bias": ({},),
    "logprobs": (False, 0),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "stop": ([], ""),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}


class ApiError(Exception):
    """An answer that is not 200, in OpenAI's error form."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers or {}

    def body(self) -> dict[str, Any]:
        """The JSON body: `{"error": {message, type, param, code}}`."""
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status)
        kind = kind or ("server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def _one_prompt(value: Any) -> str | tuple[int, ...]:
    """A string, a list of token ids, or a list that holds one of either."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (str, list)):
        value = value[0]
    if isinstance(value, str):
        return value
    # `type is int` because bool is an int to isinstance, and True is no token id.
    if isinstance(value, list) and all(type(token) is int for token in value):
        return tuple(value)
    raise ValueError("must be one string or one list of token ids")


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, hide_input_in_errors=True)


class StreamOptions(_Body):
    """Options that hold only with `stream`."""

    include_usage: bool = False


class GenerationBody(_Body):
    """What both endpoints share. Names that OpenAI has not (`top_k`, `cache_salt`, ...) are vLLM's."""

    model: str | None = None
    max_tokens: int | None = Field(None, ge=1, lt=_INT64)
    min_tokens: int = Field(0, ge=0, lt=_INT64)
    ignore_eos: bool = False
    temperature: float = Field(1.0, ge=0, le=2, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0, le=1, allow_inf_nan=False)
    top_k: int = Field(0, ge=-1, lt=2**31)
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    n: int = Field(1, ge=1, le=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    cache_salt: str | None = Field(None, min_length=1, max_length=128)

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_is_not_served(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        for name, nothing in _NOT_SERVED.items():
            asked = values.get(name)
            if asked is not None and asked not in nothing:
                raise ValueError(f"{name} is not served by this engine")
        # A client that sends null means the default, as OpenAI's API has it.
        return {name: value for name, value in values.items() if value is not None}

    @model_validator(mode="after")
    def _options_fit_together(self) -> GenerationBody:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options needs stream: true")
        return self

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return self.stream_options is not None and self.stream_options.include_usage


B = TypeVar("B", bound=GenerationBody)


class CompletionBody(GenerationBody):
    """The body of POST /v1/completions."""

    prompt: Annotated[str | tuple[int, ...], BeforeValidator(_one_prompt)]
    max_tokens: int | None = Field(16, ge=1, lt=_INT64)


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

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=1, lt=_INT64)


def parse(kind: type[B], raw: bytes) -> B:
    """Read a body. Raises ApiError 400 that names the field."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        raise ApiError(400, f"{where}: {message}" if where else message, param=where or None) from None
