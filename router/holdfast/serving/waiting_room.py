"""Calls that have come in and that nobody has looked at yet: gRPC keeps them while a server is busy."""


def waiting_room(calls_max: int) -> list[tuple[str, int]]:
    """Options of a gRPC server that refuses, by itself and typed, what is beyond this many calls."""
    return [
        # Left to itself gRPC cancels some beyond 1,000 and all beyond 3,000. A caller cannot tell that from a lost
        # connection, after which the call may have been carried out.
        ("grpc.server.max_pending_requests", calls_max),
        ("grpc.server.max_pending_requests_hard_limit", calls_max),
        # Over a fast network it would let megabytes of each of them in. So it is 64 KiB of each, and the rest comes
        # when somebody asks for it.
        ("grpc.http2.bdp_probe", 0),
    ]
