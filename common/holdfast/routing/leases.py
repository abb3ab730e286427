"""When the leases end that the joined answer of a split call tells of. Pure: routers and clients do it alike.

Each part of a split call was sent at a moment of its own, the last time perhaps long after the others: what it says is
counted from the sending of the whole call by adding to its wait.
"""

from typing import Any


def count_from(response: Any, sooner_ms: int) -> None:
    """The waits in an ExtendResponse, as counted from `sooner_ms` before this part was sent."""
    waited_ms = sooner_ms + response.routed_ms
    response.routed_ms = 0
    for outcome in response.outcomes:
        if waited_ms and outcome.HasField("extended"):
            outcome.extended.waited_ms += waited_ms
