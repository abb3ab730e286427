"""A batch over several shards: one part for each of them, and the answers joined in the order of the batch. The
messages are those of the wire API, which this package does not know.

A batch may have two lists: items that are about one task each, and items that are about several. Each list is split and
joined by itself.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Answer = TypeVar("Answer")
# What goes to one shard: the positions of its items in each of the lists, by field of the request.
Part = Mapping[str, Sequence[int]]

# What is about several tasks is answered in a list of the same name, all else as an outcome.
_ANSWERED_BY_NAME = frozenset({"runs", "ranges"})
_INDEX = re.compile(r"^(\w+)\[(\d+)\]")


def split(keys: Sequence[int]) -> dict[int, list[int]]:
    """From the shard of each item: the positions of the items of each shard, in order."""
    parts: dict[int, list[int]] = {}
    for position, shard in enumerate(keys):
        part = parts.get(shard)
        if part is None:
            parts[shard] = [position]
        else:
            part.append(position)
    return parts


def split_over(shards: Iterable[Iterable[int]]) -> dict[int, list[int]]:
    """The same where an item may belong to several shards, as a queue does."""
    parts: dict[int, list[int]] = {}
    for position, shards_of_item in enumerate(shards):
        for shard in shards_of_item:
            parts.setdefault(shard, []).append(position)
    return parts


def join(parts: Iterable[tuple[Sequence[int], Sequence[Answer]]], count: int) -> list[Answer]:
    """From (positions, answers to them) of each part: the answers of the whole batch of `count` items.

    An answer too few or too many would be given to the wrong item without a word, so it is an error.
    """
    by_position: dict[int, Answer] = {}
    answers_seen = 0
    for positions, answers in parts:
        if len(positions) != len(answers):
            raise ValueError(f"Expected {len(positions)} answers from a shard, but got {len(answers)}.")
        by_position.update(zip(positions, answers, strict=True))
        answers_seen += len(answers)
    if answers_seen != count or len(by_position) != count:
        raise ValueError(f"Expected one answer for each of {count} items, but got {answers_seen}.")
    try:
        return [by_position[position] for position in range(count)]
    except KeyError as problem:
        raise ValueError(f"Expected an answer for item {problem.args[0]}, but there is none.") from None


def answered_in(field: str) -> str:
    """The list of the response that has one outcome for each item of this list of the request."""
    return field if field in _ANSWERED_BY_NAME else "outcomes"


def split_lists(request: Any, fields: Sequence[str], keys: Sequence[int]) -> dict[int, dict[str, list[int]]]:
    """The part of each shard, from the shard of each item of these lists, one list behind the other."""
    parts: dict[int, dict[str, list[int]]] = {}
    first = 0
    for field in fields:
        count = len(getattr(request, field))
        for shard, positions in split(keys[first : first + count]).items():
            parts.setdefault(shard, {})[field] = positions
        first += count
    return parts


def split_request(request: Any, parts: Mapping[int, Part]) -> dict[int, Any]:
    """A request for each shard, with its items and all else that the whole request says, known here or not."""
    of_all = type(request)()
    of_all.CopyFrom(request)
    for field in {field for part in parts.values() for field in part}:
        of_all.ClearField(field)
    requests = {}
    for shard, part in parts.items():
        own = requests[shard] = type(request)()
        own.CopyFrom(of_all)
        for field, positions in part.items():
            items = getattr(request, field)
            getattr(own, field).extend([items[index] for index in positions])
        if "runs" in part:
            _count_behind(own.runs, part.get("tasks", ()))
    return requests


def _count_behind(runs: Iterable[Any], positions: Sequence[int]) -> None:
    """Each says how many of the request's tasks come before it: so many of those in these positions do."""
    for run in runs:
        if run.HasField("behind"):
            run.behind = bisect_left(positions, run.behind)


def join_parts(kind: Any, parts: Sequence[tuple[Part, Any]]) -> Any:
    """The response of this kind to a whole batch, from (part, what was answered) of each: a response with an outcome
    for each of its items, or the rejection of each."""
    response = kind()
    for field in dict.fromkeys(field for part, _ in parts for field in part):
        answers = answered_in(field)
        having = [(part[field], answer) for part, answer in parts if field in part]
        outcomes = [(positions, outcomes_of(kind, answer, positions, answers)) for positions, answer in having]
        getattr(response, answers).extend(join(outcomes, sum(len(positions) for positions, _ in having)))
    for _, answer in parts:
        if hasattr(answer, "generations"):
            response.generations.update(answer.generations)
    return response


def outcomes_of(kind: Any, answer: Any, positions: Sequence[int], answers: str = "outcomes") -> list[Any]:
    """Of one list of one part. A shard counts the items that it was sent; the caller counts its own."""
    if not hasattr(answer, answers):
        answer = kind(**{answers: [{"rejection": answer}] * len(positions)})
    outcomes = list(getattr(answer, answers))
    for outcome in outcomes:
        for rejection in rejections_of(outcome):
            _renumber(rejection, positions)
    return outcomes


def rejections_of(outcome: Any) -> list[Any]:
    """What an outcome refuses: all that it is about, or single tasks of a run or a range."""
    refused = [outcome.rejection] if outcome.HasField("rejection") else []
    if hasattr(outcome, "refused"):
        refused += [item.rejection for item in outcome.refused]
    return refused


def _renumber(rejection: Any, positions: Sequence[int]) -> None:
    found = _INDEX.match(rejection.field)
    if found is None or int(found[2]) >= len(positions):
        return
    here, there = found[0], f"{found[1]}[{positions[int(found[2])]}]"
    rejection.field = there + rejection.field[len(here) :]
    rejection.message = rejection.message.replace(here, there)
