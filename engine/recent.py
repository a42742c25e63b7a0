"""A map of bounded size that forgets what was not used for long. Never reads a clock."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class RecentMap(Generic[K]):
    """A map from keys to numbers that keeps the `most` keys that were used last, or at least half as many.

    Two generations stand for the order of use: a key moves to the young one when it is used, and when that
    holds half of `most` the old one is dropped.
    """

    def __init__(self, most: int) -> None:
        self._half = max(1, most // 2)
        self._young: dict[K, int] = {}
        self._old: dict[K, int] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def leading(self, keys: Iterable[K]) -> list[int]:
        """The numbers of the leading keys that are known; they count as used."""
        young, old, found = self._young, self._old, []
        for key in keys:
            value = young.get(key)
            if value is None:
                value = old.pop(key, None)
                if value is None:
                    break
                young[key] = value
            found.append(value)
        self._age()
        return found

    def put(self, keys: Iterable[K], values: Iterable[int]) -> None:
        """Set the numbers of keys."""
        self._young.update(zip(keys, values, strict=True))
        self._age()

    def _age(self) -> None:
        if len(self._young) >= self._half:
            self._old, self._young = self._young, {}
