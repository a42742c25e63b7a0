"""Chat templates are foreign programs: what one may not reach, change or fill memory with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import models

from engine.errors import InputError
from engine.text import Tokenizer


def messages() -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hi"}]


def rendered(folder: Path, template: str) -> str:
    Backend(models.BPE({"h": 0, "i": 1}, [])).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    (folder / "secret.jinja").write_text("SECRET")
    return Tokenizer.load(folder).render_chat(messages())


def test_an_honest_template_works_here(tmp_path: Path) -> None:
    """Otherwise the cases below could all fail for the test's own folder."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m['content'] | trim }}{% endfor %}{{ range(3) | list }}"
    assert rendered(tmp_path, template) == "<user>hi[0, 1, 2]"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum.__globals__['os'].environ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ open('/etc/passwd').read() }}",
        "{{ messages.append({'role': 'x'}) }}",
        "{{ messages[0].clear() }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{% include 'secret.jinja' %}",
        "{% extends 'secret.jinja' %}",
        "{% import 'os' as os %}",
        "{% from 'os' import system %}",
    ],
)
def test_escapes_changes_and_imports_are_refused(template: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the chat template refuses these messages"):
        rendered(tmp_path, template)


@pytest.mark.parametrize(
    "template",
    [
        "{{ '' | attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ raise_exception.__code__ }}",
        "{{ joiner.__init__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ '{m.__class__}'.format_map({'m': messages}) }}",
        "{{ (messages | map('upper')).gi_frame }}",
        "{% for x in messages | map(attribute='__class__') %}{{ x }}{% endfor %}",
    ],
)
def test_what_is_hidden_reads_as_nothing(template: str, tmp_path: Path) -> None:
    assert rendered(tmp_path, template) == ""


@pytest.mark.parametrize(
    "template",
    [
        "{% for x in range(10 ** 9) %}{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ messages[0].content.index('absent') }}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ 2 ** 100000 }}",
        "{% for %}",
    ],
)
def test_errors_of_a_template_are_input_errors(template: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        rendered(tmp_path, template)


@pytest.mark.parametrize(
    "template", ["{{ ('a' * 30000000) | length }}", "{{ ([0] * 30000000) | length }}", "{{ 7 ** 99999 > 0 }}"]
)
def test_operators_do_not_fill_memory(template: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        rendered(tmp_path, template)
