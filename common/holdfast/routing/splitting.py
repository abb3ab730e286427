"""A batch over several shards: one part for each of them, and the answers joined in the order of the batch. The
messages are those of the wire API, which this package does not know.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

Answer = TypeVar("Answer")

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
    for position, each in enumerate(shards):
        for shard in each:
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


def split_request(request: Any, field: str, parts: Mapping[int, Sequence[int]]) -> dict[int, Any]:
    """A request for each shard, with its items and all else that the whole request says, known here or not."""
    items = getattr(request, field)
    of_all = type(request)()
    of_all.CopyFrom(request)
    of_all.ClearField(field)
    requests = {}
    for shard, positions in parts.items():
        part = requests[shard] = type(request)()
        part.CopyFrom(of_all)
        getattr(part, field).extend([items[at] for at in positions])
    return requests


def join_parts(kind: Any, parts: Sequence[tuple[Sequence[int], Any]]) -> Any:
    """The response of this kind to a whole batch, from (positions, what was answered) of each part: a response with an
    outcome for each of its items, or the rejection of each."""
    response = kind()
    outcomes = [(positions, outcomes_of(kind, answer, positions)) for positions, answer in parts]
    response.outcomes.extend(join(outcomes, sum(len(positions) for positions, _ in parts)))
    for _, answer in parts:
        if hasattr(answer, "generations"):
            response.generations.update(answer.generations)
    return response


def outcomes_of(kind: Any, answer: Any, positions: Sequence[int]) -> list[Any]:
    """Of one part. A shard counts the items that it was sent; the caller counts its own."""
    if not hasattr(answer, "outcomes"):
        answer = kind(outcomes=[{"rejection": answer}] * len(positions))
    for outcome in answer.outcomes:
        if outcome.rejection.field:
            _renumber(outcome.rejection, positions)
    return list(answer.outcomes)


def _renumber(rejection: Any, positions: Sequence[int]) -> None:
    found = _INDEX.match(rejection.field)
    if found is None or int(found[2]) >= len(positions):
        return
    here, there = found[0], f"{found[1]}[{positions[int(found[2])]}]"
    rejection.field = there + rejection.field[len(here) :]
    rejection.message = rejection.message.replace(here, there)
