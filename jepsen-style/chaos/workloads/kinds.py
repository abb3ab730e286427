"""What the handlers of the real workers are called, and their leases; which queue probes which shard. Pure: producers
and judges need it without the app."""

from holdfast.routing.homes import home_shard

# By name of the handler, in seconds. Short ones are the rule, so that idle gaps are longer than leases.
LEASES_S: dict[str, float] = {
    "quick": 3.0,
    "quick-async": 3.0,
    "long": 2.0,
    "long-async": 2.0,
    "steady": 30.0,  # the library's own default: such a task waits long for a shard that is away
    "flaky": 5.0,
    "poison": 5.0,
    "slow-first": 10.0,
    "killer": 2.0,
    "staller": 2.0,
}
GUILTY = ("killer", "staller")

PROBE_PREFIX = "probe-"


def queue_at(shard: int, shards: int, prefix: str = PROBE_PREFIX) -> str:
    """A queue whose home is this shard; its name says which."""
    tries = (f"{prefix}{shard}-{number}" for number in range(100 * shards))
    return next(name for name in tries if home_shard(name, shards) == shard)


def probed_shard(queue: str) -> int | None:
    """Which shard a queue probes; None if it is another one."""
    return int(queue.split("-")[1]) if queue.startswith(PROBE_PREFIX) else None
