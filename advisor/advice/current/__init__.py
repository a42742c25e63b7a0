"""The control of a plan: how the user's stack is configured now, read from whatever describes it."""

from advisor.advice.current.model import Assumed, Current, Said, Stack, Unknown
from advisor.advice.current.read import defaults, read_current, read_text
from advisor.advice.current.settings import Around

__all__ = ["Around", "Assumed", "Current", "Said", "Stack", "Unknown", "defaults", "read_current", "read_text"]
