"""A list whose items are made later is a list in all that anybody can do with one."""

import copy
import json
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from operator import add, eq, le, lt, ne
from typing import Any

import pytest

from holdfast.client import Claims
from holdfast.client._lazy import LazyList

ITEMS = [1, 2, 3]

LOOKS: dict[str, Callable[[list[Any]], Any]] = {
    "iterate": lambda items: [item * 2 for item in items],
    "index": lambda items: (items[0], items[-1], items[1:]),
    "unpack": lambda items: (lambda first, *others: (first, others))(*items),
    "list": list,
    "tuple": tuple,
    "sorted": lambda items: sorted(items, reverse=True),
    "reversed": lambda items: [*reversed(items)],
    "equal": lambda items: (eq(items, ITEMS), eq(ITEMS, items), ne(items, ITEMS), eq(items, []), eq([], items)),
    "compare": lambda items: (lt(items, [9]), lt([9], items), le([1], items), le(items, [1])),
    "add": lambda items: add(items, [4]),
    "add to another": lambda items: add([0], items),
    "extend another": lambda items: _changed([0], lambda other: other.extend(items)),
    "add to another in place": lambda items: _added_to(items),
    "slice of another": lambda items: _changed([0, 0], lambda other: other.__setitem__(slice(0, 1), items)),
    "times": lambda items: (items * 2, 2 * items),
    "contains": lambda items: (2 in items, 7 in items, items.index(2), items.count(3)),
    "repr": repr,
    "json": json.dumps,
    "pickle": lambda items: pickle.loads(pickle.dumps(items)),
    "copy": lambda items: (copy.copy(items), copy.deepcopy(items), items.copy()),
    "append": lambda items: _changed(items, lambda it: it.append(4)),
    "pop": lambda items: (items.pop(), items.pop(0), items),
    "delete": lambda items: _changed(items, lambda it: it.__delitem__(0)),
    "set": lambda items: _changed(items, lambda it: it.__setitem__(0, 9)),
    "insert": lambda items: _changed(items, lambda it: it.insert(1, 9)),
    "remove": lambda items: _changed(items, lambda it: it.remove(2)),
    "sort": lambda items: _changed(items, lambda it: it.sort(reverse=True)),
    "reverse": lambda items: _changed(items, lambda it: it.reverse()),
    "clear": lambda items: _changed(items, lambda it: it.clear()),
    "add in place": lambda items: _changed(items, lambda it: it.__iadd__([4])),
    "truth": bool,
    "length": len,
}


def _changed(items: list[Any], change: Callable[[list[Any]], object]) -> list[Any]:
    change(items)
    return items


def _added_to(items: list[Any]) -> tuple[list[Any], list[Any]]:
    """What the other list is called by now, and what everybody else sees of it."""
    mine = others = [0]
    mine += items
    return mine, others


def lazy() -> LazyList[int]:
    items: LazyList[int] = LazyList()
    items.put_off(len(ITEMS), lambda: iter(ITEMS))
    return items


@pytest.mark.parametrize("name", LOOKS)
def test_it_is_seen_as_a_list_is(name: str) -> None:
    assert LOOKS[name](lazy()) == LOOKS[name]([*ITEMS])


def test_nothing_is_made_before_somebody_looks_and_nothing_twice() -> None:
    made = 0

    def make() -> list[int]:
        nonlocal made
        made += 1
        return ITEMS

    items: LazyList[int] = LazyList()
    items.put_off(3, make)
    assert (len(items), bool(items), items.is_unseen, made) == (3, True, True, 0)
    assert (items, items[1], items.is_unseen, made) == (ITEMS, 2, False, 1)


def test_another_thread_that_looks_meanwhile_does_not_see_it_empty() -> None:
    is_being_made, has_looked = threading.Event(), threading.Event()

    def make() -> list[int]:
        is_being_made.set()
        has_looked.wait(0.05)  # it cannot, until they are made
        return ITEMS

    items: LazyList[int] = LazyList()
    items.put_off(3, make)

    def second() -> int:
        assert is_being_made.wait(10)
        try:
            return items[1]
        finally:
            has_looked.set()

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(second)
        assert items[0] == 1
        assert found.result(10) == 2


def test_what_cannot_be_made_is_no_empty_list() -> None:
    def make() -> Iterator[int]:
        yield 1
        raise RuntimeError("no more")

    items: LazyList[int] = LazyList()
    items.put_off(3, make)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no more"):
            list(items)
    assert items.is_unseen


def test_two_of_them() -> None:
    assert lazy() == lazy()
    assert lazy() + lazy() == ITEMS * 2


def test_every_method_of_lists_looks_or_need_not() -> None:
    need_not = {"__class_getitem__", "__getattribute__", "__hash__", "__init__", "__len__", "__new__", "__sizeof__"}
    looked = {name for name in vars(list) if name not in need_not and name != "__doc__"}
    assert looked <= vars(LazyList).keys()


def test_claims_keep_what_they_say_when_they_are_copied() -> None:
    claims = Claims((), 1.5, (3,), 7)
    again = pickle.loads(pickle.dumps(claims))
    assert (type(again), again.run_dry_s, again.unsettled_shards, again.suggested_wait_ms) == (Claims, 1.5, (3,), 7)
