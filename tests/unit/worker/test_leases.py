"""For how long a worker claims the tasks of its app."""

from dataclasses import dataclass

from holdfast.client.worker.leases import Leases, leases_of


@dataclass(frozen=True)
class Kind:
    lease_ms: int


def leases(**tasks: int) -> Leases:
    return leases_of({name: Kind(lease_ms) for name, lease_ms in tasks.items()})


def test_one_lease_of_all_names_no_type() -> None:
    assert leases(a=30_000, b=30_000) == Leases(30_000, {})


def test_each_task_has_the_lease_of_its_declaration() -> None:
    asked = leases(a=20_000, b=1_000, c=20_000, d=60_000)
    assert asked == Leases(20_000, {"b": 1_000, "d": 60_000}), "those of most are not named"
    assert [asked.of(name) for name in "abcd"] == [20_000, 1_000, 20_000, 60_000]
    assert asked.of("known to no one here") == 20_000


def test_more_leases_than_can_be_named_begin_with_the_shortest() -> None:
    tasks = {f"t{number}": 1_000 + number for number in range(150)}
    asked = leases(**tasks)
    assert (asked.others_ms, len(asked.by_type)) == (1_000, 100)
    assert all(asked.of(name) in (lease_ms, 1_000) for name, lease_ms in tasks.items())
    assert asked.of("t149") == 1_149, "where the difference is largest it is named"
    few = leases(**tasks, **{f"same{number}": 5_000 for number in range(20)}, u=7_000)
    assert few.others_ms == 1_000
