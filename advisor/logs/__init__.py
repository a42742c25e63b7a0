"""What came in: log readers of many formats, and the Trace that they give."""

from advisor.logs.options import ReadOptions
from advisor.logs.read import read
from advisor.logs.save import save
from advisor.logs.trace import Trace

__all__ = ["ReadOptions", "Trace", "read", "save"]
