"""Defects to plant in a copy of the tree: the public bugs of KV transfer, each as a change of a line or two.

`bugs` are the numbers in docs/bugs.md. `where` says whose bug it would be: the engine's own code, or the puller
and the KV server, for which the random test has its own (tests/helpers/fleet_puller.py).
"""

from __future__ import annotations

from typing import NamedTuple

FLEET = "engine/fleet/fleet.py"
HANDOVER = "engine/fleet/handover.py"
CORE = "engine/core.py"
SCHEDULER = "engine/scheduler.py"
DRIVER = "engine/server/driver.py"
PULLER = "tests/helpers/fleet_puller.py"


class Defect(NamedTuple):
    """In file `where`, `old` becomes `new`."""

    name: str
    bugs: str
    where: str
    old: str
    new: str


DEFECTS = (
    Defect(
        "an aborted request's blocks are freed while a copy writes to them",
        "49, 61",
        HANDOVER,
        "if phase in (Phase.PULLING, Phase.VOID) and not copied and target is not dead:",
        "if phase is Phase.VOID and not copied and target is not dead:",
    ),
    Defect(
        "an aborted request is forgotten while a copy writes for it: nobody frees its blocks",
        "48, 60",
        FLEET,
        "        if not journey.target:\n            del self._journeys[journey.request.id]",
        "        del self._journeys[journey.request.id]",
    ),
    Defect(
        "the end of a copy counts for whatever attempt there is",
        "50",
        FLEET,
        "journey.attempt != attempt or journey.phase not in (Phase.PULLING, Phase.VOID)",
        "journey.phase not in (Phase.PULLING, Phase.VOID)",
    ),
    Defect(
        "the answer to a Reserve counts for whatever attempt there is",
        "50",
        FLEET,
        "if journey and journey.attempt == attempt and journey.phase is Phase.RESERVING:",
        "if journey and journey.phase is Phase.RESERVING:",
    ),
    Defect(
        "a request that ends before its KV was pulled leaves it at the source",
        "51",
        HANDOVER,
        "            out.append(Release(source.index, name))\n"
        "        self.leases.drop(name)\n"
        "        journey.source = None",
        "        self.leases.drop(name)\n        journey.source = None",
    ),
    Defect(
        "an abort in a prefill frees what runs, not what may be kept meanwhile",
        "51, 62",
        HANDOVER,
        "            out += [Abort(source.index, name)] if prefilling else []\n"
        "            out.append(Release(source.index, name))",
        "            out.append((Abort if prefilling else Release)(source.index, name))",
    ),
    Defect(
        "KV that was pulled is not released at its source",
        "51",
        HANDOVER,
        "        out.append(Release(source.index, name))\n"
        "        self.leases.drop(name)\n"
        "        journey.phase",
        "        self.leases.drop(name)\n        journey.phase",
    ),
    Defect(
        "the blocks of a copy that failed stay reserved",
        "48, 62",
        HANDOVER,
        "[Abort(target.index, journey.request.id)] if phase is not Phase.QUEUED else []",
        "[Abort(target.index, journey.request.id)] if phase not in (Phase.QUEUED, Phase.PULLING) else []",
    ),
    Defect(
        "the blocks of a copy stay reserved where its request ended meanwhile",
        "48, 62",
        HANDOVER,
        "[Abort(target.index, journey.request.id)] if phase is not Phase.QUEUED else []",
        "[Abort(target.index, journey.request.id)] if phase not in (Phase.QUEUED, Phase.VOID) else []",
    ),
    Defect(
        "a request that was asked for when its decode side died is asked for for ever",
        "64, 65",
        HANDOVER,
        "        if target.asking is journey:\n            target.asking = None\n        elif",
        "        if target.asking is journey:\n"
        "            target.asking = None if target is not dead else journey\n"
        "        elif",
    ),
    Defect(
        "who waits for room is not asked again",
        "57, 64",
        HANDOVER,
        "        target.full = False\n        self._ask(target, out)",
        "        self._ask(target, out)",
    ),
    Defect(
        "the first token is lost where the KV was not pulled after all",
        "70",
        HANDOVER,
        "        if journey.phase in LEASED:\n"
        "            journey.continue_from((*journey.produced, journey.token))\n",
        "",
    ),
    Defect(
        "a request whose instance died begins again with its prompt alone",
        "70, 76",
        FLEET,
        "        if running:\n            journey.continue_from(produced(journey.request.id))",
        "",
    ),
    Defect(
        "an instance that died is never used again",
        "66",
        FLEET,
        '        self._set_state(instance, "up")\n        for',
        "        for",
    ),
    Defect(
        "KV of a source that died is still pulled from",
        "65, 66",
        FLEET,
        "        if journey.source is dead:\n"
        "            self._handover.leave_source(journey, out, dead)\n"
        "        self._handover.leave_target",
        "        self._handover.leave_target",
    ),
    Defect(
        "a request that is refused on the decode side does not end",
        "63, 71",
        FLEET,
        "elif phase in (Phase.PREFILLING, Phase.RESERVING):",
        "elif phase is Phase.PREFILLING:",
    ),
    Defect(
        "counters of waiting requests leak where one is rejected",
        "44, 76",
        FLEET,
        "        self.counts.rejected += 1\n        self._queued -= not journey.started",
        "        self.counts.rejected += 1",
    ),
    Defect(
        "pages are there for others before their copy is",
        "55",
        SCHEDULER,
        "        seq.move(Status.PULLING)",
        "        self._cache.publish(seq.table, seq.prompt_length)\n        seq.move(Status.PULLING)",
    ),
    Defect(
        "what is released wakes nobody who waits for blocks",
        "37, 57",
        SCHEDULER,
        "        self._cache.release(seq.table, seq.computed, after)\n        self._stuck = False",
        "        self._cache.release(seq.table, seq.computed, after)",
    ),
    Defect(
        "a decode that begins takes its last prompt token once more",
        "58, 70",
        SCHEDULER,
        "        seq.restart(seq.prompt_length)\n        self._cache.publish",
        "        seq.restart(seq.prompt_length - 1)\n        self._cache.publish",
    ),
    Defect(
        "aborted requests keep their KV too",
        "60, 62",
        CORE,
        "keep = status is Status.FINISHED and seq.request.keep_kv",
        "keep = status is not Status.FAILED and seq.request.keep_kv",
    ),
    Defect(
        "blocks of an aborted request are freed under a step in flight",
        "27, 49",
        CORE,
        "after = self._flights[-1].id if seq.busy else None",
        "after = None",
    ),
    Defect(
        "released KV is still offered to pullers",
        "54, 60",
        DRIVER,
        "        if self._held is not None:\n            self._held.drop(request_id)\n",
        "",
    ),
    Defect(
        "the source never takes back what nobody comes for",
        "51, 62",
        DRIVER,
        "        for request_id in self._held.expired(self._clock()):",
        "        for request_id in list[str]():",
    ),
    Defect(
        "a source says where its blocks would be in another order",
        "67",
        DRIVER,
        "self._held.keep(name, self._core.kept_blocks(name),",
        "self._held.keep(name, sorted(self._core.kept_blocks(name)),",
    ),
    Defect(
        "the last position is not copied",
        "69, 74",
        HANDOVER,
        "                len(one.prompt),\n",
        "                max(cached_tokens + 1, len(one.prompt) - 1),\n",
    ),
    Defect(
        "the puller does not ask again after its copy, nor compares checksums",
        "54",
        PULLER,
        "        if not isinstance(reply, Intact) or reply.serial != copy.found.serial:\n",
        "        if copy.fate != 'fail':\n            return self._end(copy, 'ok')\n"
        "        if not isinstance(reply, Intact):\n",
    ),
    Defect(
        "the puller does not compare checksums",
        "74, 77",
        PULLER,
        "reply.checksum == checksum(copy.moved)",
        "reply.checksum",
    ),
    Defect(
        "a copy is reported as failed while a part of it is still being written",
        "53, 61",
        PULLER,
        '            return self._end(copy, "failed")\n        delay',
        "            copy.at -= len(values)\n"
        "            self._process.later(0.5, 'copy', partial(self._write, copy, values))\n"
        '            return self._end(copy, "failed")\n        delay',
    ),
    Defect(
        "a copy that fails is not reported",
        "52",
        PULLER,
        "        self._process.driver.pulled(",
        "        reason == 'failed' or self._process.driver.pulled(",
    ),
)
