"""Whose machine a URL names: this one, somebody's server, or a hosted API that charges for every token.

Owns the look-up of hosted APIs and of their list prices (profiles/hosted.yaml). Asks nobody.
"""

from __future__ import annotations

import ipaddress
from fnmatch import fnmatchcase
from urllib.parse import urlsplit

from advisor.advice import profiles


def is_loopback(host: str) -> bool:
    """Whether the host, by its name or address alone, is this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(url: str) -> str:
    """The host that a URL names, lower case; empty where it names none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def provider_of(url: str) -> str | None:
    """Who runs the hosted API at a URL; None where it is none that we know."""
    host = host_of(url)
    return next((row.provider for row in profiles.hosted().hosts if fnmatchcase(host, row.host)), None)


def list_price(provider: str, model: str) -> tuple[float, float] | None:
    """US dollars per million prompt and output tokens, nothing cached; None where no price is known.

    A dated name (`gpt-4o-mini-2024-07-18`) has the price of the model it begins with.
    """
    rows = [
        row
        for row in profiles.hosted().prices
        if row.provider == provider and (model == row.model or model.startswith(f"{row.model}-20"))
    ]
    return (rows[0].input, rows[0].output) if rows else None
