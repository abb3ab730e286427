"""Queues that are spread, pinned and sent home while tasks come and go, and policies of their own."""

import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from holdfast.client import (
    Accepted,
    Ack,
    Client,
    DeadLetterFilter,
    NewTask,
    QueuePolicy,
    QueueRoute,
    TaskError,
    TaskState,
)
from holdfast.proto.v1 import broker_calls_pb2
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.homes import home_shard
from holdfast.routing.task_ids import shard_of_task
from tests.integration.cluster import HOST
from tests.integration.cluster_tools import Refusal, enqueue_request, raw_call
from tests.integration.map_cluster import MapCluster, map_cluster, until
from tests.integration.map_load import MapLoad, load_on
from tests.integration.server import DEADLINE_S

SHARDS = 4
PAUSE_MS = 3_000_077  # so long that it is never over while a test looks


cluster = map_cluster(size=3, shards=SHARDS)


@pytest.fixture(scope="module")
def client(cluster: MapCluster) -> Iterator[Client]:
    with Client(cluster.address, timeout_s=DEADLINE_S) as connected:
        yield connected


def route_of(client: Client, queue: str) -> QueueRoute:
    """As the server that was asked knows it, which is where the client's tasks go by."""
    return client.topology([queue]).routes[0]


def settle(client: Client, queue: str, generation: int) -> None:
    until(lambda: route_of(client, queue).generation == generation, f"generation {generation} of {queue}")


def shards_of(load: MapLoad, kind: str, since: int = 0) -> set[int | None]:
    """Where tasks of this kind are that were accepted after the first so many."""
    return {shard_of_task(task_id) for payload, task_id in load.reported[since:] if payload.startswith(kind)}


def automatic(cluster: MapCluster, queue: str, request_id: str) -> pb.EnqueueResponse:
    """One enqueue, as a client sends it that made the id up itself."""
    request = enqueue_request(queue, request_id)
    request.tasks[0].payload = request_id.encode()
    answer = raw_call(f"{HOST}:{cluster.routers[0].port}", "Tasks/Enqueue", request)
    assert isinstance(answer, bytes)
    return pb.EnqueueResponse.FromString(answer)


def test_a_queue_is_spread_and_sent_home_under_load(cluster: MapCluster, client: Client) -> None:
    """Three kinds of producers, each through the router and direct; every fourth request with an id was made before."""
    queue = "hot"
    home = home_shard(queue, SHARDS)
    with load_on(cluster, [queue], kinds=["own", "automatic", "none"]) as load:
        assert shards_of(load, "") == {home}
        assert len(client.set_queue(queue, spread=SHARDS).route.shards) == SHARDS
        settle(client, queue, 1)
        until(lambda: len(shards_of(load, "none")) == SHARDS, "tasks without ids on every shard")
        until(lambda: len(shards_of(load, "automatic")) > 1, "tasks with automatic ids on several shards")
        load.wait_for(50)
        load.working.clear()
        until(lambda: ready_shards(load) == set(range(SHARDS)), "tasks that wait on every shard")
        first = [automatic(cluster, queue, f"~1.key{n}.0").outcomes[0].accepted for n in range(20)]
        assert len({shard_of_task(one.task_id) for one in first}) > 1
        assert client.set_queue(queue, home=True).route.draining == tuple(set(range(SHARDS)) - {home})
        settle(client, queue, 2)
        check_old_tasks_are_seen(client, load, queue)
        # A retry of a call that was made before the change finds its task where it is.
        again = [automatic(cluster, queue, f"~1.key{n}.0") for n in range(20)]
        assert [one.outcomes[0].accepted.task_id for one in again] == [one.task_id for one in first]
        assert all(one.outcomes[0].accepted.duplicate for one in again)
        assert again[0].generations[queue] == 2, "and hears of the change"
        load.working.set()
        load.wait_for(50)
        until(lambda: route_of(client, queue).draining == (), "the other shards to be drained")
        assert route_of(client, queue).shards == (home,)
        late = len(load.reported)
        load.wait_for(30)
        assert shards_of(load, "", since=late) == {home}
        # After all that they are the same tasks still.
        last = [automatic(cluster, queue, f"~1.key{n}.0").outcomes[0].accepted.task_id for n in range(20)]
        assert last == [one.task_id for one in first]
    load.check(cluster)


def ready_shards(load: MapLoad) -> set[int | None]:
    """Where tasks are that nobody has claimed yet."""
    return {shard_of_task(task_id) for payload, task_id in load.reported[:] if payload not in load.claimed}


def check_old_tasks_are_seen(client: Client, load: MapLoad, queue: str) -> None:
    waiting = sum(payload not in load.claimed for payload, _ in load.reported[:])
    assert client.queue_stats(queue).ready >= waiting


@pytest.mark.parametrize("direct", [False, True], ids=["router", "direct"])
def test_tasks_of_new_clients_go_where_a_pin_says_from_the_first_on(
    cluster: MapCluster, client: Client, direct: bool
) -> None:
    """A client that has just begun knows of no set of shards, and most commands are such clients."""
    queue = f"pinned-first-{direct}"
    pinned = (home_shard(queue, SHARDS) + 1) % SHARDS
    with Client(cluster.address, timeout_s=DEADLINE_S) as old:
        before = old.enqueue(NewTask(queue, "t"))
        assert shard_of_task(before.task_id) == home_shard(queue, SHARDS)
        client.set_queue(queue, pin=[pinned])
        settle(client, queue, 1)
        accepted = [old.enqueue(NewTask(queue, "t"))]
        for _ in range(3):
            with Client(cluster.address, direct=direct, timeout_s=DEADLINE_S) as new:
                accepted.append(new.enqueue(NewTask(queue, "t")))
                accepted += only_accepted(new.enqueue_many([NewTask(queue, "t"), NewTask(queue, "u")]))
    assert [shard_of_task(outcome.task_id) for outcome in accepted] == [pinned] * 10


def only_accepted(outcomes: Iterable[object]) -> list[Accepted]:
    accepted = [outcome for outcome in outcomes if isinstance(outcome, Accepted)]
    assert len(accepted) == len(list(outcomes))
    return accepted


@pytest.mark.parametrize("direct", [False, True], ids=["router", "direct"])
def test_a_cap_of_one_for_a_key_is_mutual_exclusion_on_a_spread_queue(
    cluster: MapCluster, client: Client, direct: bool
) -> None:
    """Whatever else its tasks have, whoever enqueues them, and while the shards of the queue change."""
    queue, keys = f"exclusive-{direct}", [f"k{n}" for n in range(6)]
    client.set_queue(queue, spread=SHARDS, policy=QueuePolicy(key_concurrency_max=1))
    settle(client, queue, 1)
    kinds: list[dict[str, Any]] = [{}, {}, {"request_id": "r-{}"}, {}, {"unique_key": "u-{}"}, {}]
    with (
        Client(cluster.address, direct=direct, timeout_s=DEADLINE_S) as first,
        Client(cluster.address, direct=not direct, timeout_s=DEADLINE_S) as second,
    ):
        for n, kind in enumerate(kinds):
            options = [{name: text.format(key) for name, text in kind.items()} for key in keys]
            tasks = [NewTask(queue, "t", limit_key=key, **more) for key, more in zip(keys, options, strict=True)]
            for outcome in (first, second)[n % 2].enqueue_many(tasks):
                assert isinstance(outcome, Accepted)
        for generation in range(1, len(kinds) + 1):
            claims = first.reserve([queue], max_tasks=99, wait_ms=20_000)
            claims += [claim for item in (second, first) for claim in item.reserve([queue], max_tasks=99)]
            assert sorted(claim.limit_key for claim in claims) == keys
            client.set_queue(queue, **({"pin": [generation % SHARDS]} if generation % 2 else {"spread": SHARDS}))
            settle(client, queue, generation + 1)
            assert not first.reserve([queue], max_tasks=99), "not before they have ended"
            first.ack_many([Ack(claim) for claim in claims])
        assert not first.reserve([queue], max_tasks=99)


def test_a_queue_is_pinned_to_a_shard_and_sent_home(cluster: MapCluster, client: Client) -> None:
    queue = "pinned"
    home = home_shard(queue, SHARDS)
    other = (home + 1) % SHARDS
    with load_on(cluster, [queue], kinds=["own", "none"]) as load:
        assert client.set_queue(queue, pin=[other]).route.shards == tuple(sorted({home, other}))
        settle(client, queue, 1)
        until(lambda: other in shards_of(load, "none"), "tasks without ids on the shard")
        load.wait_for(20)
        assert shards_of(load, "own") == {home}, "a request id of one's own means the same task wherever the queue is"
        assert shards_of(load, "none") == {home, other}
        assert client.set_queue(queue, home=True).route.draining == (other,)
        settle(client, queue, 2)
        until(lambda: route_of(client, queue).draining == (), "the shard to be drained")
        load.wait_for(20)
    load.check(cluster)
    assert route_of(client, queue).shards == (home,)


def test_a_policy_counts_also_for_a_leader_that_never_saw_etcd(cluster: MapCluster, client: Client) -> None:
    """Then etcd dies, and the leader: the next one has it from the log."""
    queue = "strict"
    shard = home_shard(queue, SHARDS)
    before = client.enqueue(NewTask(queue, "t", b"before")).task_id
    policy = QueuePolicy(max_attempts=2, retry_base_ms=PAUSE_MS, retry_factor=1.0, retry_jitter=0.0)
    assert client.set_queue(queue, policy=policy).policy == policy
    until(lambda: has_policy(client, queue), "the policy to count")
    [claim] = client.reserve([queue], worker="w")
    assert claim.task_id == before
    client.ack(claim)
    discard_probes(client, queue)
    check_two_attempts(client, queue)
    victim = cluster.wait_for_leader(shard)
    cluster.etcd.kill()
    try:
        cluster.nodes[victim].kill()
        until(lambda: cluster.leader(shard) not in ("", victim), "another leader")
        check_two_attempts(client, queue)
    finally:
        cluster.etcd.start()
    cluster.nodes[victim].start()
    assert client.set_queue(queue, clear=["max_attempts"]).policy.max_attempts is None
    until(lambda: not has_policy(client, queue), "the default to count again")
    discard_probes(client, queue)
    cluster.wait_settled()
    cluster.check_hashes()


def has_policy(client: Client, queue: str) -> bool:
    """Asked of a task that is made for it."""
    accepted = client.enqueue(NewTask(queue, "t", b"probe"))
    return client.get_task(accepted.task_id).max_attempts == 2


def discard_probes(client: Client, queue: str) -> None:
    while claims := client.reserve([queue], max_tasks=100, worker="w"):
        client.ack_many(claims)


def check_two_attempts(client: Client, queue: str) -> None:
    """The first failure waits as long as the queue says, the second one is the last."""
    accepted = client.enqueue(NewTask(queue, "t", b"fails"))
    assert isinstance(accepted, Accepted)
    [claim] = client.reserve([queue], worker="w", wait_ms=5000)
    assert claim.task_id == accepted.task_id
    failed = client.fail(claim, TaskError("E", "first"))
    assert failed.state is TaskState.RETRY_PENDING
    task = client.get_task(accepted.task_id)
    assert (task.due_at_ms or 0) - task.changed_at_ms == PAUSE_MS
    client.update_task(accepted.task_id, delay_ms=0)
    [claim] = client.reserve([queue], worker="w", wait_ms=5000)
    assert (claim.task_id, claim.attempt) == (accepted.task_id, 2)
    assert client.fail(claim, TaskError("E", "second")).state is TaskState.DEAD
    assert client.get_dead_letter(accepted.task_id).dead_reason == "ATTEMPTS_SPENT"


def test_a_request_id_is_taken_by_the_home_of_its_queue_alone(cluster: MapCluster, client: Client) -> None:
    """Somebody with a wrong idea of where the home is must not make a second task of the same request."""
    queue, request = "once", enqueue_request("once", "order-17")
    home = home_shard(queue, SHARDS)
    router = f"{HOST}:{cluster.routers[0].port}"
    first = client.enqueue(NewTask(queue, "t", request_id="order-17"))
    for shard in range(SHARDS):
        leader = cluster.nodes[cluster.wait_for_leader(shard)].address
        for address in (leader, router):
            answer = raw_call(address, "Tasks/Enqueue", request, shard=shard)
            if shard == home:
                assert isinstance(answer, bytes)
                accepted = pb.EnqueueResponse.FromString(answer).outcomes[0].accepted
                assert (accepted.task_id, accepted.duplicate) == (first.task_id, True)
            else:
                assert isinstance(answer, Refusal)
                assert (answer.code, answer.reason) == ("UNAVAILABLE", "WRONG_SHARD")
                assert answer.metadata["home"] == str(home)
    assert client.queue_stats(queue).enqueued_total == 1


def test_a_shard_that_a_queue_has_left_keeps_its_dead_letters(cluster: MapCluster, client: Client) -> None:
    """They are listed, and can be sent back to workers; only then the shard is left for good."""
    queue = "revived"
    home = home_shard(queue, SHARDS)
    other = (home + 2) % SHARDS
    client.set_queue(queue, pin=[other])
    settle(client, queue, 1)
    accepted = client.enqueue(NewTask(queue, "t", b"x", request_id=""))
    assert shard_of_task(accepted.task_id) == other
    [claim] = client.reserve([queue], worker="w", wait_ms=5000)
    client.fail(claim, dead=True)
    client.set_queue(queue, home=True)
    settle(client, queue, 2)
    assert [task.task_id for task in client.list_dead_letters(queue).tasks] == [accepted.task_id]
    client.retry_dead_letter(accepted.task_id)
    [claim] = client.reserve([queue], worker="w", wait_ms=5000)
    assert (claim.task_id, claim.payload) == (accepted.task_id, b"x")
    assert route_of(client, queue).draining == (other,)
    client.ack(claim)
    until(lambda: route_of(client, queue).draining == (), "the shard to be drained")
    cluster.check_hashes()


@pytest.mark.parametrize("direct", [False, True], ids=["router", "direct"])
def test_totals_never_fall(cluster: MapCluster, client: Client, direct: bool) -> None:
    """Not when a queue comes home from shards that have had its tasks."""
    queue, count = f"totals-{direct}", 12
    client.set_queue(queue, spread=SHARDS)
    settle(client, queue, 1)
    for _ in range(count):
        client.enqueue(NewTask(queue, "t"))
    claims = [claim for _ in range(SHARDS) for claim in client.reserve([queue], max_tasks=count)]
    assert len({shard_of_task(claim.task_id) for claim in claims}) > 1
    client.ack_many([Ack(claim) for claim in claims])
    client.set_queue(queue, home=True)
    settle(client, queue, 2)

    def totals(asking: Client) -> tuple[int, int]:
        stats = asking.queue_stats(queue)
        return stats.enqueued_total, stats.succeeded_total

    with Client(cluster.address, direct=direct, timeout_s=DEADLINE_S) as asking:
        while route_of(client, queue).draining:
            assert totals(asking) == (count, count)
    with Client(cluster.address, direct=direct, timeout_s=DEADLINE_S) as asking:
        assert totals(asking) == (count, count), "also for who knows only where it is now"


def test_which_dead_letters_are_meant_is_decided_by_each_shard(
    cluster: MapCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clocks of clients may be wrong, and dead letters may come while they are gone through."""
    queue, count = "timeless", 12
    client.set_queue(queue, spread=2)
    settle(client, queue, 1)
    tasks = [client.enqueue(NewTask(queue, "t")) for _ in range(count)]
    assert len({shard_of_task(task.task_id) for task in tasks}) == 2

    def kill_what_waits(worker: Client) -> None:
        while claims := worker.reserve([queue], worker="w", max_tasks=count):
            for claim in claims:
                worker.fail(claim, dead=True)

    kill_what_waits(client)
    true_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: true_ns() - 60_000_000_000)
    with (
        Client(cluster.address, direct=True, timeout_s=DEADLINE_S) as direct,
        Client(cluster.address, timeout_s=DEADLINE_S) as worker,
    ):
        for item in (client, direct):
            assert item.retry_dead_letters_where(queue, dry_run=True, batch_size=2).found == count
        monkeypatch.setattr(time, "time_ns", lambda: true_ns() + 60_000_000_000)
        for item in (client, direct):
            reported = item.retry_dead_letters_where(
                queue, batch_size=2, progress=lambda _reported: kill_what_waits(worker)
            )
            assert (reported.found, reported.done) == (count, count)


def test_a_follow_up_with_a_taken_id_is_a_dead_letter_where_it_lives(client: Client) -> None:
    near = "follow.0"
    far = next(name for n in range(1, 99) if home_shard(name := f"follow.{n}", SHARDS) != home_shard(near, SHARDS))
    known = client.enqueue(NewTask(far, "t", b"first", request_id="once"))
    client.enqueue(NewTask(near, "t"))
    [claim] = client.reserve([near])
    acked = client.ack(claim, follow_ups=[NewTask(far, "t", b"second", request_id="once")])
    assert acked.follow_ups == (Accepted(""),), "nobody could know yet"
    taken = DeadLetterFilter(reason="REQUEST_ID_CONFLICT", error=known.task_id)
    until(lambda: client.list_dead_letters(far, where=taken).tasks, "the dead letter")
    [letter] = client.list_dead_letters(far, where=taken).tasks
    assert client.enqueue(NewTask(far, "t", b"first", request_id="once")).task_id == known.task_id
    client.retry_dead_letter(letter.task_id)
    claims = client.reserve([far], max_tasks=9)
    assert [claim.payload for claim in claims] == [b"first", b"second"]
    client.ack_many([Ack(claim) for claim in claims])
    assert client.queue_stats(far).dead_total == 1


def test_what_brokers_tell_each_other_is_closed_to_clients(cluster: MapCluster, client: Client) -> None:
    """Messages of a forged number would make a shard take all genuine ones before it for received."""
    near = "closed.0"
    far = next(name for n in range(1, 99) if home_shard(name := f"closed.{n}", SHARDS) != home_shard(near, SHARDS))
    source, destination = home_shard(near, SHARDS), home_shard(far, SHARDS)
    forged = broker_calls_pb2.ReceiveTasksRequest(
        cluster_id=client.describe_cluster().cluster_id, destination_shard=destination, source_shard=source,
        source_incarnation=1, first_sequence=1_000_000,
        messages=[broker_calls_pb2.OutboxMessage(task=pb.TaskSpec(queue=far, type="forged"))],
    )  # fmt: skip
    shares = broker_calls_pb2.AllocateRequest(
        cluster_id=forged.cluster_id, destination_shard=destination, source_shard=source,
        reports=[broker_calls_pb2.AllocationReport(queue=far, what="concurrency", number=2**62)],
    )  # fmt: skip
    for address in (*cluster.broker_addresses, f"{HOST}:{cluster.routers[0].port}"):
        for method, request in (("ReceiveTasks", forged), ("Allocate", shares)):
            answer = raw_call(address, f"Shards/{method}", request, shard=destination)
            assert isinstance(answer, Refusal)
            assert answer.code == "UNIMPLEMENTED"
    client.enqueue_many([NewTask(near, "t") for _ in range(20)])
    claims = client.reserve([near], max_tasks=20)
    client.ack_many([Ack(claim, follow_ups=[NewTask(far, "t", claim.task_id.encode())]) for claim in claims])
    arrived: set[bytes] = set()
    while len(arrived) < 20 and (found := client.reserve([far], max_tasks=20, wait_ms=20_000)):
        arrived |= {claim.payload for claim in found}
    assert arrived == {claim.task_id.encode() for claim in claims}
    assert client.queue_stats(far).enqueued_total == 20
