"""What may be shown. Owns the rule that no secret of the user's text is kept, printed or put in an error."""

from __future__ import annotations

import re

_NAME = re.compile(
    r"(?i)(?:^|[-_.])(?:api[-_]?keys?|keys?|token|authtoken|passw(?:or)?d|pass|credentials?|authorization)$"
    r"|secret|password|access[-_]?key"
)
_PLAIN = re.compile(r"[A-Za-z0-9_.+,:{}$()-]{1,16}")
_LOOKS_SECRET = re.compile(r"(?i)^(hf_|sk-|sk_|gh[pousr]_|xox|akia|eyj|nvapi-)|(?=\w*\d)(?=\w*[a-z])\w{12,}")
_USERINFO = re.compile(r"(?<=://)[^/\s]*@")


def is_secret(name: str) -> bool:
    """Whether a flag, key or variable of this name holds a secret: HF_TOKEN, --api-key."""
    return _NAME.search(name.lstrip("-")) is not None


def shown(text: str) -> str:
    """`text` as an error may quote it: short and plain, else only that there is something."""
    plain = _PLAIN.fullmatch(text) and not _LOOKS_SECRET.search(text)
    return repr(text) if plain else "the value given (not shown)"


def shown_name(flag: str) -> str:
    """The name of a flag as it may be printed; only its form is trusted, a stray value is not."""
    return (
        flag if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", flag) and not _LOOKS_SECRET.search(flag) else "(a flag)"
    )


def without_userinfo(text: str) -> str:
    """A name or address without the user and password of a URL."""
    return _USERINFO.sub("", text)
