"""Lists whose items are made when somebody looks at them: of a batch there are many, and often nobody does."""

import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


class _Filling:
    """One list is filled at a time: another thread that looks at it meanwhile must not see it empty."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # a signal handler may look at another list meanwhile
        os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self.lock = threading.RLock()  # the thread that had it is not in the child


_filling = _Filling()


class LazyList(list[T]):
    """In all else a list. Looking at how long it is makes nothing."""

    _make: Callable[[], Iterable[T]] | None = None
    _count = 0

    def put_off(self, count: int, make: Callable[[], Iterable[T]]) -> None:
        """So many items, of a list that has none so far."""
        self._make, self._count = make, count

    @property
    def is_unseen(self) -> bool:
        """Nobody has looked, and nobody has changed it."""
        return self._make is not None

    def __len__(self) -> int:
        return super().__len__() if self._make is None else self._count

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)

    def _fill(self) -> None:
        with _filling.lock:
            if self._make is not None:
                super().__setitem__(slice(None), [*self._make()])
                self._make = None  # not before: if that raised, it will again


def _filled_first(name: str) -> Callable[..., Any]:
    of_list = getattr(list, name)

    def method(self: LazyList[Any], *args: Any, **kwargs: Any) -> Any:
        if self._make is not None:
            self._fill()
        for other in args:  # a list looks into another one without asking it
            if isinstance(other, LazyList):
                other._fill()
        return of_list(self, *args, **kwargs)

    method.__name__ = name
    return method


_LOOKS = (
    "__add__", "__contains__", "__delitem__", "__eq__", "__ge__", "__getitem__", "__gt__", "__iadd__", "__imul__",
    "__iter__", "__le__", "__lt__", "__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__", "__setitem__",
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort",
)  # fmt: skip
for _name in _LOOKS:
    setattr(LazyList, _name, _filled_first(_name))


def _radd(self: LazyList[Any], other: Any) -> Any:
    """A list that is the left one looks into it without asking. It does the rest itself, for `+=` in its own place."""
    if isinstance(other, list):
        self._fill()
    return NotImplemented


setattr(LazyList, "__radd__", _radd)  # noqa: B010
