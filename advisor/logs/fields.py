"""Where the canonical fields are in rows that follow no particular format.

Owns the aliases. Names are compared without case and punctuation (`promptTokens` is `prompt_tokens`), at the
top and inside the usual containers. The first alias of a list wins, then the outermost container.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from advisor.logs.record import Row

ARRIVALS: dict[str, str | None] = {  # alias -> unit that its name tells
    "arrival": None, "arrivals": "s", "arrivalms": "ms", "arrivaltime": None, "arrivedat": None,
    "arrivaltimestamp": None, "requestreceivedts": None, "requestreceivedms": "ms", "receivedat": None,
    "requesttime": None, "requesttimestamp": None, "requestcreatedat": None, "starttime": None,
    "startedat": None, "starttimestamp": None,
    "starttimems": "ms", "startms": "ms", "timestamp": None, "timestampms": "ms",
    "timestamps": "s", "timestampus": "us", "timestampns": "ns", "ts": None, "tsms": "ms", "time": None,
    "datetime": None, "date": None, "createdat": None, "createdtime": None, "created": None, "start": None,
}  # fmt: skip
ENDS: dict[str, str | None] = {
    "endtime": None, "endedat": None, "completedat": None, "finishedat": None, "finishtime": None,
    "endtimestamp": None, "responsecreatedat": None, "eventtimeunixms": "ms", "end": None,
}  # fmt: skip
TTFTS: dict[str, str | None] = {
    "ttfts": "s", "ttftms": "ms", "ttft": None, "timetofirsttokenms": "ms", "timetofirsttokens": "s",
    "timetofirsttoken": None, "firsttokenlatency": None, "firsttokenms": "ms",
}  # fmt: skip
E2ES: dict[str, str | None] = {
    "e2es": "s", "e2ems": "ms", "e2elatency": None, "e2elatencys": "s", "e2elatencyms": "ms", "e2e": None,
    "latencyms": "ms", "latencys": "s", "latencyseconds": "s", "latency": None, "durationms": "ms",
    "durations": "s", "durationseconds": "s", "duration": None, "requestdurationms": "ms", "totaltimems": "ms",
    "totaltime": None, "responsetimems": "ms", "responsetime": None, "elapsedms": "ms", "elapsedtime": None,
    "generationtimems": "ms", "delayms": "ms",
}  # fmt: skip
_NAMES: dict[str, Sequence[str]] = {
    "prompt_tokens": (
        "prompttokens", "inputtokens", "numprompttokens", "numinputtokens", "numprefilltokens", "contexttokens",
        "requesttokens", "tokensprompt", "tokensin", "tokensinput", "inputtokenstotal", "inputtokencount",
        "prompttokencount", "promptlength", "promptlen", "inputlength", "inputlen", "isl",
    ),
    "output_tokens": (
        "completiontokens", "outputtokens", "numcompletiontokens", "numoutputtokens", "numgeneratedtokens",
        "numdecodetokens", "generatedtokens", "generationtokens", "responsetokens", "tokenscompletion",
        "tokensout", "tokensoutput",
        "outputtokencount", "completiontokencount", "candidatestokencount", "outputlength",
        "outputlen", "responselength", "osl",
    ),
    "cached_tokens": (
        "cachedtokens", "prompttokensdetails.cachedtokens", "inputtokensdetails.cachedtokens",
        "cachereadinputtokens", "cachereadtokens", "promptcachereadtokens", "tokenscached", "inputcachedtokens",
    ),
    "cache_write": ("cachecreationinputtokens", "cachewriteinputtokens"),
    "total_tokens": ("totaltokens", "tokenstotal", "totaltokencount"),
    "counts_all": ("prompttokens",),  # OpenAI's name, which includes what was cached ...
    "counts_rest": ("cachereadinputtokens",),  # ... and Anthropic's for what its prompt leaves out
    "model": ("model", "modelname", "modelid", "servedmodel", "modelslug", "modelpermaslug", "deployment"),
    "route": (
        "route", "path", "url", "endpoint", "requestpath", "uri", "operation", "operationname", "calltype",
        "requesttype",
    ),
    "object": ("object",),  # what an OpenAI response says that it is
    "phase": ("warmup", "iswarmup", "benchmarkphase", "phase"),
    "agent": ("useragent", "httpuseragent"),
    "client": (
        "client", "clientid", "user", "userid", "enduser", "tenant", "tenantid", "customer", "customerid",
        "apikeyhash", "apikeyname", "apikey", "team", "teamid",
    ),
    "session": ("session", "sessionid", "conversation", "conversationid", "chatid", "threadid"),
    "status": ("statuscode", "httpstatus", "responsestatus", "responsecode", "status", "success"),
    "error": ("errortype", "error.type", "error.code", "error", "exception", "errormessage"),
    "output": ("output", "completion", "outputtext", "response", "answer"),
}  # fmt: skip
ALIASES: dict[str, Sequence[str]] = _NAMES | {
    "arrival": tuple(ARRIVALS), "end": tuple(ENDS), "ttft": tuple(TTFTS), "e2e": tuple(E2ES),
}  # fmt: skip
_CONTAINERS = (
    "", "usage.", "response.usage.", "response.body.usage.", "responsebody.usage.", "body.usage.", "tokens.",
    "metrics.", "timing.", "request.", "body.", "request.body.", "requestbody.", "response.", "response.body.",
    "responsebody.", "requestjson.", "responsejson.usage.", "responsejson.", "metadata.",
    "metadata.usageobject.", "request.metadata.", "body.metadata.",
)  # fmt: skip
_MISSING = frozenset(("", "null", "NULL", "None", "nan", "NaN", "-"))  # as CSV writers put it
_DEPTH = 5
_MOST_KEYS = 400  # of one object
_MOST_SHAPES = 1000
_PUNCTUATION = re.compile(r"[^a-z0-9.]")


_Path = tuple[str, ...]  # keys from the top of a row to a value, as the log writes them
_Plan = tuple[tuple[str, tuple[_Path, ...]], ...]  # canonical names, each with where to look in turn


class Fields:
    """Finds fields in rows. Remembers where they are in every shape of row that it met."""

    def __init__(self, field_map: Sequence[tuple[str, str]] = ()) -> None:
        self._mapped = {name: ".".join(map(_plain, path.split("."))) for name, path in field_map}
        self._plans: dict[tuple[Any, ...], _Plan] = {}

    def find(self, row: Row) -> dict[str, Any]:
        """Canonical name -> value, for those that the row has."""
        found = {}
        for name, paths in self._plan(row):
            for path in paths:
                value: Any = row
                for key in path:
                    value = value[key]
                if value is not None and not (type(value) is str and value in _MISSING):
                    found[name] = value
                    break
        return found

    def locate(self, sample: Sequence[Row], name: str) -> str | None:
        """The path of a field as the first row that has it writes it."""
        for row in sample:
            for known, paths in self._plan(row):
                if known == name:
                    return ".".join(paths[0])
        return None

    def unit(self, path: str | None, units: Mapping[str, str | None]) -> str | None:
        """The unit that the last part of a located path tells, if any."""
        return None if path is None else units.get(_plain(path.rpartition(".")[2]))

    def _plan(self, row: Row) -> _Plan:
        shape = _shape(row, _DEPTH)
        plan = self._plans.get(shape)
        if plan is None:
            if len(self._plans) >= _MOST_SHAPES:
                self._plans.clear()
            paths: dict[str, _Path] = {}
            _collect(row, "", (), paths, _DEPTH)
            plan = self._plans[shape] = tuple(self._columns(paths))
        return plan

    def _columns(self, paths: Mapping[str, _Path]) -> Iterator[tuple[str, tuple[_Path, ...]]]:
        for name, aliases in ALIASES.items():
            keys = [container + alias for alias in aliases for container in _CONTAINERS]
            if name in self._mapped:
                keys = [self._mapped[name]]
            if places := tuple(paths[key] for key in keys if key in paths):
                yield name, places
        for name, key in self._mapped.items():
            if name not in ALIASES and key in paths:
                yield name, (paths[key],)


def _shape(row: Row, depth: int) -> tuple[Any, ...]:
    """The keys of a row, those of the objects in it after their own: rows of one shape have one plan."""
    parts: list[Any] = []
    for key, value in row.items() if len(row) <= _MOST_KEYS else itertools.islice(row.items(), _MOST_KEYS):
        parts.append(key)
        if depth and type(value) is dict:
            parts.append(_shape(value, depth - 1))
    return tuple(parts)


def _collect(row: Row, prefix: str, path: _Path, paths: dict[str, _Path], depth: int) -> None:
    """Plain dotted name -> path, of what `_shape` looks at."""
    for key, value in itertools.islice(row.items(), _MOST_KEYS):
        name = prefix + _plain(key)
        paths[name] = (*path, key)
        if depth and type(value) is dict:
            _collect(value, name + ".", (*path, key), paths, depth - 1)


def _plain(name: str) -> str:
    return _PUNCTUATION.sub("", name.lower())
