"""Taking turns among any number of named things, of which only a bounded number is held in memory.

The names are in an index, in order. Those that are held wait for their turn (`due`), have had it (`served`), or are set
aside because they are blocked (`aside`). Whenever nobody is due, the walk over the index goes on by a page; at its end
it begins again. Once a walk has met nothing that had to be forgotten it rests: all there is is held, or was blocked
when it was forgotten, and a new cycle begins with those who were served. So a few names cost no reading at all, and a
hundred thousand cost a page for every page of turns.

What is new while the walk goes on is met by it, in this cycle or the next one; while it rests it is added by `add`. Who
gave its last is remembered until the cycle ends: what it has by then waits for the next one. It stays idle, as long as
there is room: most come back soon, and `wake` costs less than to make them anew.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, Protocol, TypeVar


class ScanBudget:
    """How much a pick may still look at in vain."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = 0


class CacheBudget:
    """How many more may stay idle, at least, in all queues together."""

    __slots__ = ("left",)

    def __init__(self, left: int) -> None:
        self.left = left


class Named(Protocol):
    @property
    def name(self) -> bytes: ...


T = TypeVar("T", bound=Named)


class Page(NamedTuple):
    """What the walk has met."""

    names: list[bytes]
    rows: int  # that were read for it
    after: bytes | None  # where it goes on; None: this was the end


class Turns(Generic[T]):
    """Subclasses read the index and make what is in it."""

    __slots__ = (
        "_aside_max",
        "_cache_budget",
        "_forgot",
        "_held_max",
        "_stays",
        "aside",
        "due",
        "empty_scans",
        "gone",
        "idle",
        "known",
        "lost",
        "served",
        "walk_after",
    )  # fmt: skip

    def __init__(
        self,
        walk_from: bytes | None,
        *,
        held_max: int,
        aside_max: int,
        stays: bytes | None,
        cache_budget: CacheBudget,
        few: bool = False,
    ) -> None:
        # The first of a plain dict is behind all that were taken out of it: that is quicker only where there are few.
        order: Callable[[], dict[bytes, T]] = dict if few else OrderedDict
        self._held_max = held_max
        self._aside_max = aside_max
        self._stays = stays  # a name that the index does not have, so it must not be forgotten
        self.known: dict[bytes, T] = {}  # all of the following
        self.due: dict[bytes, T] = order()
        self.served: dict[bytes, T] = order()
        self.aside: dict[bytes, T] = order()
        self.idle: dict[bytes, T] = {}  # these have nothing
        self._cache_budget = cache_budget
        self.gone: set[bytes] = set()  # who had its turn in this cycle and nothing more to give
        self.walk_after = walk_from  # where the walk goes on; None: it rests
        self._forgot = bool(walk_from)  # something was forgotten that only another walk finds
        self.empty_scans = 0  # how many walks have ended since somebody gave something in his turn
        self.lost = False  # something blocked was forgotten: no walk is needed until it may be open

    # What a subclass knows.

    def _read(self, after: bytes) -> Page:
        raise NotImplementedError

    def _make(self, name: bytes) -> T:
        """Of a name that was read last, or is new."""
        raise NotImplementedError

    def _read_up(self) -> None:
        """What `_read` found out about names is old from now on."""

    def _forgotten(self, item: T) -> None:
        """The item is not held any more."""

    def _discard(self, item: T) -> None:
        """Nobody uses the item any more."""

    def _rested(self, item: T) -> None:
        """The item is idle."""

    def _returned(self, item: T) -> None:
        """The item is idle no more."""

    def _changed(self) -> None:
        """Something has come, gone, or changed its place, or the walk goes on."""

    # Turns.

    @property
    def active(self) -> int:
        """How many are not idle."""
        return len(self.known) - len(self.idle)

    @property
    def rests(self) -> bool:
        return self.walk_after is None

    def current(self, scan_budget: ScanBudget) -> T | None:
        """Whose turn it is. None if all are blocked or nobody is there, and while it does not rest, as far as is known:
        there was nothing left to look with."""
        while True:
            for item in self.due.values():
                return item
            if self.walk_after is not None and scan_budget.left > 0:
                scan_budget.left -= 1 + self._walk(self.walk_after)
            elif self.served:
                self.due, self.served = self.served, self.due
                self.gone.clear()
                self._changed()
            else:
                return None

    def finish_turn(self, item: T) -> None:
        """Whose turn it was waits for the next one."""
        del self.due[item.name]
        self.served[item.name] = item
        if self.walk_after is not None and len(self.served) > self._held_max:
            self.forget_one()
        self._changed()

    def may_end(self, item: T) -> bool:
        """Whether `end` may be called for one that has nothing more to give."""
        return self.walk_after is None and item.name != self._stays

    def end(self, item: T) -> None:
        """Whose turn it was has given its last."""
        self.drop(item)
        if len(self.gone) >= self._held_max:
            self.gone.clear()
        self.gone.add(item.name)

    def drop(self, item: T) -> None:
        """Whose turn it was has nothing more."""
        name = item.name
        del self.due[name]
        if self.walk_after is None and self._cache_budget.left > 0 and name != self._stays:
            self._cache_budget.left -= 1
            self.idle[name] = item
            self._rested(item)
        else:
            self._forget(item)
        self._changed()

    def wake(self, name: bytes) -> None:
        """Something new has that name. If it is idle, it waits for its turn again."""
        item = self.idle.pop(name, None)
        if item is not None:
            self._cache_budget.left += 1
            self._returned(item)
            (self.served if name in self.gone else self.due)[name] = item
            self._changed()

    def set_aside(self, item: T) -> None:
        """Whose turn it was is blocked."""
        del self.due[item.name]
        self.aside[item.name] = item
        if len(self.aside) > self._aside_max:
            self._lose_one()
        self._changed()

    def open(self, name: bytes) -> bool:
        """What was set aside may be blocked no more."""
        item = self.aside.pop(name, None)
        if item is None:
            return False
        self.due[name] = item
        self._changed()
        return True

    def open_all(self) -> None:
        self.due.update(self.aside)
        self.aside.clear()
        if self.lost:
            self.walk_again()
        self._changed()

    def walk_again(self) -> None:
        """There may be something in the index that is not held."""
        self.lost = False
        if self.walk_after is None:
            self.walk_after = b""
        else:
            self._forgot = True

    def add(self, name: bytes) -> T | None:
        """Something new has that name, which is not held. None if the walk will meet it."""
        if name != self._stays and not self._may_hold():
            self._forgot = True
            self._changed()
            return None
        item = self.known[name] = self._make(name)
        (self.served if name in self.gone else self.due)[name] = item
        self._changed()
        return item

    def forget_idle(self) -> None:
        for item in self.idle.values():
            self._returned(item)
            self._forget(item)
        self.idle.clear()
        self._changed()

    def _may_hold(self) -> bool:
        if self.walk_after is None and self.active >= self._held_max:
            self.walk_after = b""
        return self.walk_after is None

    def forget_one(self) -> bool:
        """Forgets who was served the longest ago; the walk meets it again."""
        for name in self.served:
            if name != self._stays:
                self._forgot = True
                if self.walk_after is None:
                    self.walk_after = b""
                self._forget(self.served.pop(name))
                self._changed()
                return True
        return self._lose_one()

    def _lose_one(self) -> bool:
        for name in self.aside:
            if name != self._stays:
                self.lost = True
                self._forget(self.aside.pop(name))
                return True
        return False

    def _forget(self, item: T) -> None:
        del self.known[item.name]
        self._forgotten(item)
        self._discard(item)

    def _walk(self, after: bytes) -> int:
        page = self._read(after)
        self.walk_after = page.after
        self._meet(name for name in page.names if name != self._stays or name not in self.known)
        self._read_up()
        if page.after is None:
            self.empty_scans += 1
            if self._forgot:
                self.walk_after = b""
                self._forgot = False
                if self._stays is not None and self._stays in self.served:  # once in each cycle, as everybody
                    self._meet([self._stays])
        self._changed()
        return page.rows

    def _meet(self, names: Iterable[bytes]) -> None:
        for name in names:
            if name in self.served:
                self.due[name] = self.served.pop(name)
            elif name not in self.known:
                self.due[name] = self.known[name] = self._make(name)
