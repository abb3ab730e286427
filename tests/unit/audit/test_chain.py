"""Lines of an audit log: what was written is read again, and nothing can be changed unnoticed."""

import random

import pytest

from holdfast.audit.chain import BEGINNING, BrokenChainError, Entry, check, file_name, first_number, line_of, read_line


def chain(count: int) -> list[str]:
    lines, before = [], BEGINNING
    for number in range(1, count + 1):
        entry = Entry(number, 1000 + number, "n1", "token:ada", "10.0.0.1:5", "Queues/PurgeQueue", "queue=mäil", "OK")
        line, before = line_of(entry, before)
        lines.append(line)
    return lines


def test_what_is_written_is_read_again() -> None:
    lines = chain(5)
    entry, before, _ = read_line(lines[0])
    assert (entry.number, entry.on, before) == (1, "queue=mäil", BEGINNING)
    found = check(lines, BEGINNING, 0)
    assert (found.entries, found.first, found.last, found.hash) == (5, 1, 5, read_line(lines[-1])[2])
    assert check(lines[2:]).first == 3, "older files may be gone"
    assert check([]).entries == 0


def test_a_line_that_is_changed_missing_or_put_in_is_found() -> None:
    lines = chain(5)
    for bad in (
        [lines[0], *lines[2:]],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [*lines[:2], lines[1], *lines[2:]],
        [lines[0], lines[1].replace("ada", "eve"), *lines[2:]],
        [lines[0], "", *lines[1:]],
    ):
        with pytest.raises(BrokenChainError, match=r"line [23] "):
            check(bad, BEGINNING, 0)
    with pytest.raises(BrokenChainError, match="line 1 does not follow"):
        check(lines[1:], BEGINNING, 0)


def test_every_character_counts() -> None:
    lines = chain(1)
    draw = random.Random(5)
    for place in range(len(lines[0])):
        changed = lines[0][:place] + draw.choice('0x"{},:[ ') + lines[0][place + 1 :]
        if changed != lines[0]:
            with pytest.raises(BrokenChainError):
                read_line(changed)


def test_any_text_is_read_or_refused() -> None:
    draw = random.Random(6)
    for bad in ("", "{}", "[]", "null", "[" * 20_000, '{"hash":1}', "1" * 100_000, '{"a":NaN}'):
        with pytest.raises(BrokenChainError):
            read_line(bad)
    [line] = chain(1)
    for _ in range(2000):
        start, end = sorted(draw.choices(range(len(line)), k=2))
        with pytest.raises(BrokenChainError):
            read_line(line[:start] + line[end + 1 :])


def test_long_texts_are_cut() -> None:
    line, _ = line_of(Entry(1, 1, "n1", "x" * 10_000, "", "", "", "OK"), BEGINNING)
    assert len(read_line(line)[0].who) == 300


def test_names_of_files() -> None:
    assert first_number(file_name(17)) == 17
    assert [first_number(name) for name in ("audit-1.jsonl", "audit-.jsonl", "x", "audit-000000000001.json")] == [0] * 4
