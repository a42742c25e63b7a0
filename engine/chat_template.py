"""A model's chat template: a foreign Jinja program, run in a sandbox.

Owns what such a program may reach: its messages, tools and special tokens, no file, no clock, no attribute that
begins with an underscore. What fills memory or recurses is cut off where it starts; how long loops within loops
take is not bounded. Its errors say their kind only: their words may quote the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InputError

_MOST_REPEATED = 100_000  # elements that `*` may make, jinja2's own bound of range; and of `**` the exponent is
_MOST_EXPONENT = 64


class ChatTemplate:
    """Messages to the text of a prompt. `where` names the model. Raises InputError for what is no template."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], where: str) -> None:
        self._special_tokens = dict(special_tokens)
        self._where = where
        try:
            self._template = _Sandbox().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            why = f"it is no valid template: {type(error).__name__}"
            raise InputError(
                "cannot read the chat template",
                where=where,
                why=why,
                hint="copy tokenizer_config.json again from where the model is from",
            ) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        add_generation_prompt: bool,
    ) -> str:
        """The prompt's text. Raises InputError where the template fails, whatever it does."""
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except Exception as error:  # a foreign program raises what it likes
            why = f"the template raised {type(error).__name__}"
            raise InputError(
                "the chat template refuses these messages",
                where=self._where,
                why=why,
                hint="send roles and contents as the model's template wants them, or use /v1/completions",
            ) from None


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks the assistant's words for training; for a prompt it means nothing."""

    tags: set[str] = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox that transformers renders chat templates in, less its clock, and with bounded operators."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        extensions = [_GenerationTag, jinja2.ext.loopcontrols]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions)
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """`left operator right`, where the result is of a bearable size."""
        if operator == "**" and abs(right) > _MOST_EXPONENT:
            raise OverflowError
        for repeated, times in ((left, right), (right, left)):
            if operator == "*" and hasattr(repeated, "__len__") and len(repeated) * times > _MOST_REPEATED:
                raise OverflowError
        return super().call_binop(context, operator, left, right)


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
