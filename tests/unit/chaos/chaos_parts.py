"""Parts of histories made by hand, for the tests of the chaos harness. Times are seconds."""

from chaos.history import ENQUEUE, OK, Call, Claim, Story

S = 1_000_000_000


def task_on(shard: int, number: int = 1) -> str:
    """The id of a task of this shard."""
    return f"01a1ebc6-74f6-8{shard >> 4:03x}-{0x80 | (shard & 0xF) << 2:02x}00-{number:012x}"


def sent(value: str = "v1", task: str = "t1", *, outcome: str = OK, at: float = 0, req_id: str = "r1") -> Call:
    return Call(
        f=ENQUEUE, outcome=outcome, invoked_ns=int(at * S), ended_ns=int((at + 0.5) * S), queue="q",
        task=task if outcome == OK else "", req_id=req_id, value=value,
    )  # fmt: skip


def claimed(token: int = 10, at: float = 1, *, task: str = "t1", value: str = "v1", queue: str = "q", req: str = "",
            asked: float | None = None, took: float = 0.5, lease_s: float = 0, attempt: int = 0, limit_key: str = "",
            tenant: str = "") -> Claim:  # fmt: skip
    return Claim(
        task=task, token=token, value=value, queue=queue, asked_ns=int((at if asked is None else asked) * S),
        sent_ns=int(at * S), ended_ns=int((at + took) * S), req_id=req, lease_ms=int(lease_s * 1000),
        attempt=attempt, limit_key=limit_key, tenant=tenant,
    )  # fmt: skip


def used(f: str, token: int = 10, at: float = 2, *, task: str = "t1", outcome: str = OK, lease_s: float = 0) -> Call:
    return Call(
        f=f, outcome=outcome, invoked_ns=int(at * S), ended_ns=int((at + 0.5) * S), queue="q", task=task, token=token,
        lease_ms=int(lease_s * 1000),
    )  # fmt: skip


def story(*parts: Call | Claim) -> Story:
    calls = [part for part in parts if isinstance(part, Call)]
    return Story(calls=calls, claims=[part for part in parts if isinstance(part, Claim)])
