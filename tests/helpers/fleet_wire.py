"""Virtual time, and what carries messages in it between a router, its instances and their KV servers.

Control messages are in order and lost only with their connection. The KV plane loses messages, doubles them,
and lets later ones overtake. An event is one entry of the clock: something is read, begun, completed or copied.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Generic, TypeVar

Message = TypeVar("Message")
Then = Callable[[], None]
FOREVER = float("inf")
A_WHILE_S = 5.0  # whoever is stopped for ever may go on after all


class Clock:
    """The events to come, by time. `what` names an event; `recent` are the last ones, for reports.

    Whoever finds at its time that there is nothing to do says so with `void`: that was no event.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.recent: deque[str] = deque(maxlen=80)
        self._heap: list[tuple[float, int, str, Then]] = []
        self._numbers = count()

    def at(self, when: float, what: str, then: Then) -> None:
        """Let something happen; what is due at one time happens in the order of these calls."""
        heappush(self._heap, (when, next(self._numbers), what, then))

    def after(self, delay: float, what: str, then: Then) -> None:
        self.at(self.now + delay, what, then)

    def void(self) -> None:
        self._void = True

    def step(self) -> None:
        """Let the next event happen."""
        self._void = True
        while self._void:
            self.now, _, what, then = heappop(self._heap)
            self.recent.append(f"{self.now:.3f} {what}")
            self._void = False
            then()


class Delays:
    """How long messages take: exponential around `mean`, one in twenty so `tail` times as long."""

    def __init__(self, random: Random, mean: float, tail: float) -> None:
        self._random, self._mean, self._tail = random, mean, tail

    def __call__(self) -> float:
        mean = self._mean * self._tail if self._random.random() < 0.05 else self._mean
        return self._random.expovariate(1 / mean)


class Channel(Generic[Message]):
    """One way of a connection: first in, first out, and nothing arrives once it is closed.

    `ready_at` says when the reader goes on reading; while that is later, messages wait.
    """

    def __init__(
        self,
        clock: Clock,
        delays: Delays,
        name: str,
        deliver: Callable[[Message], None],
        ready_at: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.open = True
        self.on_the_way: deque[Message] = deque()
        self._clock, self._delays, self._name = clock, delays, name
        self._deliver, self._ready_at = deliver, ready_at
        self._last = 0.0

    def send(self, message: Message) -> None:
        if self.open:
            self._last = max(self._last, self._clock.now + self._delays())
            self.on_the_way.append(message)
            self._clock.at(self._last, self._name, self._arrive)

    def close(self) -> None:
        self.open = False
        self.on_the_way.clear()

    def _arrive(self) -> None:
        """Every arrival takes the oldest message, so that waiting changes no order."""
        ready = self._ready_at()
        if not self.open or ready > self._clock.now:
            self._clock.void()
            if self.open:
                self._clock.at(min(ready, self._clock.now + A_WHILE_S), self._name, self._arrive)
        else:
            self._deliver(self.on_the_way.popleft())


class KvPlane:
    """Carries a message once, twice or not at all, in any order. `quiet` ends losses and doubles."""

    def __init__(
        self, clock: Clock, random: Random, delays: Delays, counts: Counter[str], *, loss: float, twice: float
    ) -> None:
        self._clock, self._random, self._delays, self._counts = clock, random, delays, counts
        self.loss, self.twice = loss, twice

    def carry(self, what: str, then: Then) -> None:
        if self._random.random() < self.loss:
            self._counts["KV message lost"] += 1
            return
        copies = 2 if self._random.random() < self.twice else 1
        self._counts["KV message doubled"] += copies - 1
        for _ in range(copies):
            self._clock.after(self._delays(), what, then)

    def quiet(self) -> None:
        self.loss = self.twice = 0.0
