"""The judge of the kill test is itself tested: each broken promise is found, and what can be is not complained of."""

import pytest

from tests.integration.history import Claimed, Enqueued, History, Settled, violations

SENT = Enqueued("r1", b"body", "t1")
CLAIM = Claimed(1, 2, "t1", 10, "r1", b"body")
ACK = Settled("ack", 3, 4, "t1", 10, True)


def history(*events: object) -> History:
    return History(
        enqueued=[event for event in events if isinstance(event, Enqueued)],
        claimed=[event for event in events if isinstance(event, Claimed)],
        settled=[event for event in events if isinstance(event, Settled)],
    )


ALLOWED = {
    "one life": [SENT, CLAIM, ACK],
    "an enqueue without an answer that happened": [Enqueued("r1", b"body", None), CLAIM, ACK],
    "an enqueue without an answer that did not": [Enqueued("r1", b"body", None)],
    "sent again and recognised": [Enqueued("r1", b"body", None), SENT, SENT, CLAIM, ACK],
    "an ack without an answer": [SENT, CLAIM, Settled("ack", 3, 4, "t1", 10, None)],
    "an ack without an answer that did not happen": [
        SENT, CLAIM, Settled("ack", 3, 4, "t1", 10, None), Claimed(9, 10, "t1", 11, "r1", b"body"),
        Settled("ack", 11, 12, "t1", 11, True),
    ],
    "a late ack that is refused": [
        SENT, CLAIM, Claimed(5, 6, "t1", 11, "r1", b"body"), Settled("ack", 7, 8, "t1", 10, False),
        Settled("ack", 7, 8, "t1", 11, True),
    ],
    "an answer that overtook another": [SENT, Claimed(1, 9, "t1", 10, "r1", b"body"),
                                        Claimed(2, 8, "t1", 11, "r1", b"body"), Settled("ack", 9, 9, "t1", 11, True)],
}  # fmt: skip

BROKEN = {
    "lost: t1": [SENT],
    "lost: t1 ": [SENT, CLAIM, Settled("ack", 3, 4, "t1", 10, False)],
    "lost: t1 was": [SENT, CLAIM, Settled("release", 3, 4, "t1", 10, True)],
    "unexpected: t2 was handed out but never sent": [
        Claimed(1, 2, "t2", 10, "r2", b"body"), Settled("ack", 3, 4, "t2", 10, True)
    ],
    "unexpected: t1 was handed out with another payload": [SENT, Claimed(1, 2, "t1", 10, "r1", b"other"), ACK],
    "duplicated: r1 made 2 tasks": [SENT, CLAIM, ACK, Enqueued("r1", b"body", "t2"),
                                    Settled("ack", 3, 4, "t2", 11, None)],
    "tokens: two claims share one": [SENT, CLAIM, CLAIM, ACK],
    "tokens: t1 was claimed with a smaller token": [SENT, CLAIM, Claimed(5, 6, "t1", 9, "r1", b"body"), ACK],
    "stale: ack of t1 was accepted after another": [
        SENT, CLAIM, Claimed(5, 6, "t1", 11, "r1", b"body"), Settled("ack", 7, 8, "t1", 10, True)
    ],
    "stale: release of t1 was accepted after another": [
        SENT, CLAIM, Claimed(5, 6, "t1", 11, "r1", b"body"), Settled("release", 7, 8, "t1", 10, True),
        Settled("ack", 9, 9, "t1", 11, True),
    ],
    "stale: t1 was acked under 2 tokens": [
        SENT, CLAIM, ACK, Claimed(2, 6, "t1", 11, "r1", b"body"), Settled("ack", 7, 8, "t1", 11, True)
    ],
    "zombie: t1": [SENT, CLAIM, ACK, Claimed(5, 6, "t1", 11, "r1", b"body")],
}  # fmt: skip


@pytest.mark.parametrize("events", ALLOWED.values(), ids=ALLOWED)
def test_what_can_be_is_not_complained_of(events: list[object]) -> None:
    assert violations(history(*events)) == []


@pytest.mark.parametrize(("found", "events"), BROKEN.items(), ids=BROKEN)
def test_a_broken_promise_is_found(found: str, events: list[object]) -> None:
    assert any(found.strip() in violation for violation in violations(history(*events)))
