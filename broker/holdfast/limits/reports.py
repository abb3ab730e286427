"""What a shard and the home of its spread queues say to each other about one limit of one queue."""

from typing import NamedTuple


class LimitReport(NamedTuple):
    """What is held and wanted here. Of the settings, which are reported likewise, only the version is said."""

    queue: bytes
    what: str  # which limit: as `quota.coordinator` and `policy.settings_guard` call them
    holds: int = 0  # what it believes it may use: claims, or thousandths of claims a second
    uses: int = 0  # what it uses at this moment
    demand: int = 0  # what it could use
    number: int = 0  # grows with every report of a shard, over all its leaders
    version: int = 0  # of the queue's settings, as the shard knows them


class LimitGrant(NamedTuple):
    """What the home says to a report."""

    queue: bytes
    what: str
    amount: int = 0
    lease_ms: int = 0  # counted from when the report was sent
    unlimited: bool = False  # the queue has no such limit
    number: int = 0  # of the report; 0 if it was overtaken by a later one, and counts for nothing
    version: int = 0  # the newest of the queue's settings that the home has heard of
