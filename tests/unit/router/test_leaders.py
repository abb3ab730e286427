"""Who is believed about who leads, and the way of one call: no channels, no clock."""

import pytest
from google.rpc import code_pb2, error_details_pb2, status_pb2

from holdfast.router.failures import rejection_of, reported
from holdfast.router.leaders import Leaders, MappedLeader, RouterRetryState
from holdfast.router.methods import ALL, QUEUES, SCHEDULES, TASKS
from holdfast.routing.leaders import SUSPECT_S
from holdfast.serving.refusals import RefusedError
from holdfast.transport.channels import CallFailedError
from tests.unit.router.router_stage import Table

A, B, C = "a:1", "b:1", "c:1"


@pytest.fixture
def table() -> Table:
    return Table(2, leaders={0: (A, 3)}, replicas={0: [A, B, C]})


@pytest.fixture
def leaders(table: Table) -> Leaders:
    return Leaders(table)


@pytest.fixture
def leader(leaders: Leaders) -> MappedLeader:
    return leaders.of(0)


def refusal(reason: str, **metadata: str) -> CallFailedError:
    status = status_pb2.Status(code=code_pb2.Code.Value("UNAVAILABLE"), message="No.")
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason, domain="holdfast", metadata=metadata))
    return CallFailedError("UNAVAILABLE", "No.", status.SerializeToString())


NEVER_SENT = CallFailedError("UNAVAILABLE", "No connection.", was_connected=False)
LOST = CallFailedError("UNAVAILABLE", "Socket closed")


def test_the_hint_of_the_map_comes_first_and_only_newer_ones_replace_what_is_known(
    leader: MappedLeader, table: Table
) -> None:
    assert leader.pick(0.0) == A
    assert leader.name(B, 5, 0.0)
    assert leader.pick(0.0) == B
    assert not leader.name(C, 4, 0.0)
    table.leaders[0] = (C, 4)
    assert leader.pick(0.0) == B
    table.leaders[0] = (C, 6)
    assert leader.pick(0.0) == C


def test_without_a_hint_any_replica_is_asked(leaders: Leaders, leader: MappedLeader, table: Table) -> None:
    table.leaders.clear()
    assert leader.pick(0.0) == A
    assert leader.pick(0.0, {A, B}) == C
    assert leader.pick(0.0, {A, B, C}) is None
    assert leaders.of(1).pick(0.0) is None


def test_suspects_are_asked_last_for_a_while(leader: MappedLeader) -> None:
    assert leader.pick(0.0) == A
    leader.left(A, 0.0, suspect=True)
    assert (leader.pick(0.1), leader.pick(SUSPECT_S)) == (B, A)
    assert leader.pick(0.1, {B, C}) == A


def test_a_call_follows_the_first_redirect_at_once(leader: MappedLeader) -> None:
    state = RouterRetryState(leader, leader.pick(0.0) or "")
    assert state.after(refusal("NOT_LEADER", leader=B, epoch="7"), lambda: False, 0.0) == 0.0
    assert (state.address, leader.named) == (B, B)
    assert state.after(refusal("NOT_LEADER", leader=C, epoch="8"), lambda: False, 0.0) != 0.0
    assert state.address == C


@pytest.mark.parametrize(
    ("failure", "if_repeatable", "if_not"),
    [
        (NEVER_SENT, True, True),
        (LOST, True, False),
        # gRPC's words about the connection it has now: the call may have gone over the one before.
        (CallFailedError("UNAVAILABLE", "failed to connect to all addresses; last error: …"), True, False),
        (CallFailedError("CANCELLED", "It was silent."), True, False),
        (CallFailedError("DEADLINE_EXCEEDED", "", was_connected=False), True, True),
        (refusal("NOT_LEADER"), True, True),
        (refusal("SHUTTING_DOWN"), True, True),
        (refusal("SHARD_NOT_FOUND"), True, True),
        (refusal("OUTCOME_UNKNOWN"), True, False),
        (refusal("OVERLOADED"), False, False),
        (refusal("INVALID_FIELD"), False, False),
        (refusal("INTERNAL"), False, False),
        (CallFailedError("UNIMPLEMENTED", "?"), False, False),
    ],
)
def test_what_is_tried_again(leader: MappedLeader, failure: CallFailedError, if_repeatable: bool, if_not: bool) -> None:
    for may_repeat, expected in ((True, if_repeatable), (False, if_not)):
        state = RouterRetryState(leader, A)
        assert (state.after(failure, lambda may_repeat=may_repeat: may_repeat, 0.0) is not None) is expected  # type: ignore[misc]


def test_the_last_word() -> None:
    assert isinstance(reported(refusal("OVERLOADED"), 0, is_unknown=False), CallFailedError)
    for failure, is_unknown, expected in (
        (NEVER_SENT, False, "NOT_LEADER"),
        (NEVER_SENT, True, "OUTCOME_UNKNOWN"),
        (LOST, True, "OUTCOME_UNKNOWN"),
        (refusal("NOT_LEADER", leader=A, epoch="3"), False, "NOT_LEADER"),
        (refusal("OVERLOADED"), True, "OUTCOME_UNKNOWN"),
        (CallFailedError("RESOURCE_EXHAUSTED", "Concurrent RPC limit exceeded!"), False, "OVERLOADED"),
    ):
        word = reported(failure, 0, is_unknown=is_unknown)
        assert isinstance(word, RefusedError)
        assert (word.reason, "leader" in word.metadata) == (expected, False)
    assert rejection_of(CallFailedError("DATA_LOSS", "secret")).message == (
        "The broker failed with DATA_LOSS and gave no reason."
    )


def test_every_call_of_the_wire_api_has_its_rule() -> None:
    """A new one is repeatable unless it is named: this list makes somebody think about it."""
    assert {method.name for method in ALL if not method.may_repeat(b"")} == {
        "Reserve", "RetryDeadLetters", "DiscardDeadLetters", "PurgeQueue", "DeleteSchedule", "TriggerSchedule"
    }  # fmt: skip
    assert {method.name for method in ALL if method.waits} == {
        "Reserve", "AwaitTasks", "WaitTasks", "ReadProbe", "ListBackupFiles"
    }  # fmt: skip
    with_ids = TASKS["Enqueue"].request(tasks=[{"request_id": "a"}, {"request_id": "b"}])
    without = TASKS["Enqueue"].request(tasks=[{"request_id": "a"}, {}])
    assert TASKS["Enqueue"].may_repeat(with_ids.SerializeToString())
    assert not TASKS["Enqueue"].may_repeat(without.SerializeToString())
    assert TASKS["Reserve"].may_repeat(TASKS["Reserve"].request(claim_request_id="a").SerializeToString())
    for method, fields, expected in (
        (QUEUES["PurgeQueue"], {"page_token": "0.a"}, True),
        (QUEUES["PurgeQueue"], {"dry_run": True}, True),
        (SCHEDULES["PutSchedule"], {"must_be_new": True}, False),
        (SCHEDULES["TriggerSchedule"], {"request_id": "a"}, True),
    ):
        assert method.may_repeat(method.request(**fields).SerializeToString()) is expected, method.name
