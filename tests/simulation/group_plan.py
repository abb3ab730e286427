"""How a seed's group is: what its machines, its network and its callers are like, and the limits of the code."""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from dataclasses import dataclass

from holdfast.broker.config import BrokerConfig
from holdfast.broker.replica import shard as shard_module
from holdfast.raft import node_journal
from tests.simulation.world import constants

_CONFIG = BrokerConfig()


@dataclass(frozen=True)
class Plan:
    """What one seed does, apart from the choices made under way."""

    nodes: int
    seconds: float  # of trouble
    pause_seconds: float  # about how long a caller does nothing between two calls
    is_founded_in_peace: bool
    trouble_seconds: float  # about how long between two faults
    latency_seconds: float
    loss: float
    repetition: float
    no_room: float  # how likely a round finds no room, all the time
    sync_seconds: float  # about how long a write to the log takes
    flush_seconds: float  # about how long a flush of the state takes
    copy_seconds: float  # about how long it takes to send a snapshot
    segment_bytes: int
    keep_bytes: int  # of the log for those who lag; the others get a snapshot
    flush_bytes: int
    flush_age_seconds: float
    recent_bytes: int
    read_entries: int
    apply_pause_seconds: float  # about how long it takes until something is applied
    apply_seconds: float
    apply_entries: int
    slice_steps: float  # how fast the time of a slice of applying runs out

    @staticmethod
    def draw(rng: random.Random) -> Plan:
        return Plan(
            nodes=rng.choice((3, 3, 3, 3, 1)),
            seconds=rng.uniform(6, 14),
            pause_seconds=rng.choice((0.15, 0.4)),
            is_founded_in_peace=rng.random() < 0.8,
            trouble_seconds=rng.choice((0.5, 1.0, 2.0)),
            latency_seconds=rng.choice((0.001, 0.01, 0.05)),
            loss=rng.choice((0.0, 0.01, 0.1)),
            repetition=rng.choice((0.0, 0.05)),
            no_room=rng.choice((0.0, 0.0, 0.0, 0.02, 0.08)),
            sync_seconds=rng.choice((0.0005, 0.004, 0.03)),
            flush_seconds=rng.choice((0.0, 0.03, 0.3)),
            copy_seconds=rng.choice((0.01, 0.3)),
            segment_bytes=rng.choice((16, 32, 64)) * 1024,
            keep_bytes=rng.choice((0, 0, 100_000)),
            flush_bytes=rng.choice((1, 50_000, 1 << 30)),
            flush_age_seconds=rng.choice((0.2, 1.0, 1000.0)),
            recent_bytes=rng.choice((0, 0, 500)),
            read_entries=rng.choice((4, 16, 256)),
            apply_pause_seconds=rng.choice((0.0, 0.005, 0.03)),
            apply_seconds=rng.choice((0.001, 0.004, 0.02)),
            apply_entries=rng.choice((1, 3, 64)),
            slice_steps=rng.choice((0.0002, 0.001, 0.003)),
        )

    def config(self) -> BrokerConfig:
        return _CONFIG.model_copy(
            update={"ready_window_tasks": 20, "claims_per_worker_max": 1000, "finished_retention_ms": 3600 * 1000}
        )

    def applied(self, rng: random.Random) -> AbstractContextManager[None]:
        return constants(
            rng,
            self.slice_steps,
            (node_journal, "RECENT_BYTES_MAX", self.recent_bytes),
            (node_journal, "READ_ENTRIES", self.read_entries),
            (shard_module, "APPLY_SECONDS_MAX", self.apply_seconds),
            (shard_module, "APPLY_ENTRIES_MAX", self.apply_entries),
        )
