"""Jobs in processes: as many at once as the machine has cores, with the same answers as one after another."""

from __future__ import annotations

from collections.abc import Callable

from advisor.advice.search.judge import Goal, Job, Judged, judge
from advisor.children import Children, process_count
from advisor.simulation.load import Load


class Judges(Children[Job, Judged]):
    """Processes that judge layouts on one load. Leaving the context ends them; an error ends them at once."""

    def __init__(self, load: Load, goal: Goal, processes: int | None) -> None:
        hint = "free some memory, or plan for a part of the log: --log-share 1/8"
        count = process_count(processes) if len(load) > FEW_REQUESTS else 1
        super().__init__(_judge, (load, goal), count, purpose="simulates", hint=hint)


FEW_REQUESTS = 100  # starting processes takes longer than simulating so few (ours)


def _judge(setup: tuple[Load, Goal]) -> Callable[[Job], Judged]:
    load, goal = setup
    return lambda job: judge(job, load, goal)
