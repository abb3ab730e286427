"""A policy of a queue's own, of which no number is that of the defaults."""

from typing import Any

from holdfast.broker.config import BrokerConfig
from holdfast.broker.policy.policies import default_policy

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
CONFIG = BrokerConfig()
PLAIN = default_policy(CONFIG)
OWN: dict[str, Any] = {
    "max_attempts": 2,
    "max_claims": 3,
    "retry_base_ms": 70,
    "retry_factor": 3.0,
    "retry_cap_ms": 200,
    "retry_jitter": 0.0,
    "dedup_window_ms": 5000,
    "result_ttl_ms": 2 * HOUR_MS,
    "finished_retention_ms": HOUR_MS,
    "dead_retention_ms": 3 * HOUR_MS,
}
