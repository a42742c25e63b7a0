"""From a Page to HTML: the Jinja2 environment, and JSON that cannot end the element it stands in.

Everything is escaped but figures, which are our own SVG; control characters are shown as escapes.
"""

from __future__ import annotations

import json
import math
from typing import Any

import jinja2
from markupsafe import Markup

from advisor.report.html.page import Page
from advisor.report.rows import visible
from engine.resources import data_folder

# In a script element only these can end it, begin a comment, or end a line of a JavaScript string.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def fill(page: Page) -> str:
    """The page as one HTML document."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(data_folder("templates") / "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("report.html.j2").render(page=page, data=embedded(page.data))


def embedded(data: Any) -> Markup:
    """JSON for a script element: no character in it means anything to HTML. Infinite numbers are null."""
    text = json.dumps(_finite(data), sort_keys=True, separators=(",", ":"), allow_nan=False)
    for sign, escape in _UNSAFE.items():
        text = text.replace(sign, escape)
    return Markup(text)  # noqa: S704 - nothing is left in it that HTML would read


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
