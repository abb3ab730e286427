"""A batch over several shards: one part for each of them, and the answers joined in the order of the batch."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

Answer = TypeVar("Answer")


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
