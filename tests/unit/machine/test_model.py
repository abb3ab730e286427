"""The machine against a model: plain dicts, no key layout, the rules of the transition table written a second time."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import settings

from holdfast.machine.new_runs import NewRun, pack_digests, pack_ids, pack_sizes
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import KEEP_PRIORITY
from holdfast.machine.rows import HAS_RETRY
from tests.long import IS_LONG
from tests.unit.machine.machine_against_model import MachineAgainstModel
from tests.unit.machine.machine_model import PAUSE_MS
from tests.unit.machine.machine_new_tasks import LIMIT_KEYS, QUEUES, TENANTS, UNIQUE, WINDOW_MS
from tests.unit.machine.machine_shard import use_short_rows


@pytest.fixture(autouse=True)
def short_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    use_short_rows(monkeypatch)


TestMachineAgainstModel = MachineAgainstModel.TestCase
TestMachineAgainstModel.settings = settings(max_examples=30, stateful_step_count=50, deadline=None, print_blob=True)


# Hypothesis finds and shrinks short histories well; these go deeper, into states that take many steps to reach.


def some_tasks(rng: Random, count_max: int) -> list[NewTask]:
    return [
        NewTask(
            queue=rng.choice(QUEUES),
            priority=rng.choice((0, 4, 9)),
            tenant=rng.choice(TENANTS),
            limit_key=rng.choice(LIMIT_KEYS),
            type=rng.choice((b"send", b"")),
            flags=unique[0],
            unique_key=unique[1],
            timeout_ms=rng.choice((0, 0, 12, 100)),
            start_by_ms=rng.choice((0, 0, 0, 20, 90)),
            digest=rng.choice((0, 7, 7, 7, 8)),
            request_id=rng.choice((b"", b"", b"%d" % rng.randrange(12), b"often")),
            dedup_window_ms=rng.choice((5, WINDOW_MS, 500)),
            run_at_ms=rng.choice((0, 0, 15, 90)),
            max_attempts=rng.randint(1, 4),
            max_claims=rng.randint(2, 5),
            result_ttl_ms=rng.choice((0, 20, 300)),
            envelope=rng.randbytes(rng.randrange(5)),
        )
        for unique in rng.choices(UNIQUE, (4, 1, 2, 2), k=rng.randint(1, count_max))
    ]


def some_runs(rng: Random) -> list[NewRun]:
    runs = []
    for _ in range(rng.randint(1, 2)):
        payloads = [rng.randbytes(rng.randrange(4)) for _ in range(rng.randint(1, 12))]
        own_ids, digests, request_id = b"", b"", rng.choice((b"", b"", b"run %d" % rng.randrange(6)))
        if not request_id and rng.random() < 0.5:
            own_ids = pack_ids([rng.choice((b"", b"%d" % rng.randrange(40))) for _ in payloads])
            digests = pack_digests(rng.choices((0, 7, 7, 7, 8), k=len(payloads))) if own_ids else b""
        runs.append(
            NewRun(
                queue=rng.choice(QUEUES),
                tenant=rng.choice(TENANTS),
                limit_key=rng.choice(LIMIT_KEYS),
                request_ids=own_ids,
                digests=digests,
                priority=rng.choice((0, 4, 9)),
                request_id=request_id,
                dedup_window_ms=rng.choice((5, WINDOW_MS, 500)),
                max_attempts=rng.randint(1, 4),
                max_claims=rng.randint(2, 5),
                result_ttl_ms=rng.choice((0, 20, 300)),
                type=rng.choice((b"send", b"")),
                flags=rng.choice((0, HAS_RETRY)),
                timeout_ms=rng.choice((0, 0, 12, 100)),
                header=rng.randbytes(rng.randrange(3)),
                sizes=pack_sizes([len(payload) for payload in payloads]),
                payloads=b"".join(payloads),
                start_by_ms=rng.choice((0, 0, 0, 0, 20, 90)),
            )
        )
    return runs


def random_step(run: MachineAgainstModel, rng: Random) -> None:
    picked = [(rng.random() < 0.8, rng.randrange(13)) for _ in range(rng.randint(1, 3))]
    queues = rng.sample(QUEUES, rng.randint(1, 2))
    request_id = rng.choice((b"", b"x", b"y"))
    strays = picked if rng.random() < 0.2 else []
    raise_marks = rng.choice(("honest", "honest", "stale", "none"))
    lease_ms, priority = rng.choice((10, 40, 300)), rng.choice((0, 4, 9, KEEP_PRIORITY))
    steps: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: run.enqueue(some_tasks(rng, 3))),
        (6, lambda: run.enqueue_runs(some_runs(rng), some_tasks(rng, 2))),
        (6, lambda: run.ack_ranges(picked, rng.randint(1, 6))),
        (
            14,
            lambda: run.claim(
                queues,
                rng.choice((1, 2, 3, 7)),
                request_id,
                lease_ms,
                strays,
                raise_marks,
                rng.randrange(9),
                rng.getrandbits(64),
            ),
        ),
        (8, lambda: run.claim_alone(rng.choice(QUEUES), rng.choice((1, 1, 1, 2)), rng.choice((b"", b"x")), picked)),
        (5, lambda: run.ack(picked, rng.choice((None, b"", b"done")), rng.choice(([], [], some_tasks(rng, 2))))),
        (6, lambda: run.fail(picked, rng.random() < 0.2, rng.choice((1, 30)))),
        (3, lambda: run.extend(picked, rng.choice((-20, 10, 200)), rng.choice((0, 0, 4)))),
        (4, lambda: run.release(picked, rng.choice((0, 0, 20)))),
        (2, lambda: run.expire(picked)),
        (2, lambda: run.promote(picked)),
        (2, lambda: run.cancel(picked, rng.random() < 0.3)),
        (2, lambda: run.retry_dead(picked)),
        (1, lambda: run.discard_dead(picked, rng.choice((0, 70)))),
        (3, lambda: run.update(picked, priority, rng.choice((None, None, 0, 15)))),
        (1, lambda: run.ttl_expire(picked)),
        (1, lambda: run.set_allocations(rng.choice(QUEUES), 1, [(rng.randrange(3), rng.randbytes(rng.randrange(2)))])),
        (1, lambda: run.purge(picked)),
        (1, lambda: run.expire_keys(picked)),
        (
            2,
            lambda: run.ack_away(
                picked, some_tasks(rng, 1), [(rng.choice((2, 9)), rng.randbytes(2))], rng.randrange(2), 6
            ),
        ),
        (2, lambda: run.deliver(rng.choice((2, 9)), rng.randrange(4))),
        (1, lambda: run.receive((5, rng.randint(1, 2)), rng.choice((-1, 0, 0, 1)), some_tasks(rng, 2))),
        (1, lambda: run.set_queue(rng.choice(QUEUES), rng.randrange(1, 30), rng.randbytes(2), rng.random() < 0.3)),
        (4, lambda: run.time_passes(rng.choice((1, 5, 20)), rng.choice((0, 0, 7)))),
        (6, lambda: run.timers_fire(rng.choice((1, 5, 20, 60)), 3)),
        (2, lambda: run.change_lag(rng.randrange(4))),
        (1, lambda: run.fail_over(rng.randrange(4))),
        (1, lambda: run.restart()),
    ]
    weights, actions = zip(*steps, strict=True)
    rng.choices(actions, weights)[0]()


@pytest.mark.parametrize("seed", range(8 if IS_LONG else 4))
def test_long_histories(seed: int) -> None:
    rng = Random(seed)
    run = MachineAgainstModel()
    run.elect(some_tasks(rng, 6))
    for step in range(400):
        random_step(run, rng)
        if step == 150:
            run.clock_steps()
        elif step == 200:
            run.time_passes(PAUSE_MS, 0)
    run.teardown()
