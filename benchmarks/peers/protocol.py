"""What the parent tells a load process of a row. What else they say to each other is in harness/protocol.py."""

from dataclasses import dataclass
from typing import Any

PRODUCE = "produce"
CONSUME = "consume"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSpec:
    role: str
    client: str  # "module:class"
    target: dict[str, Any]
    queue: str
    tally: str  # the path of the file
    number: int = 0  # of the producer: its ids are its own
    batch_tasks: int = 1
    payload_bytes: int = 1024
    rate_per_s: float = 0.0  # calls; 0: the next as soon as the last has returned
    unfinished_max: int = 0  # pauses while there are more; 0: never
    is_sampled: bool = False  # a consumer that tells how old each task was
