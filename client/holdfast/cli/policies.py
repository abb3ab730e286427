"""What can be set for a queue: how each setting is called, written, read and shown. A table, and nothing about servers.

`holdfast queue set` has an option for each line, `queue show` a row, and `queue set --reset` takes their names.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.cli import times
from holdfast.cli.options import CAP_MAX, number, one_of, shown_tenant, tenant, whole, word, words
from holdfast.client import QueuePolicy, RetryShape, TenantPolicy

CONFIGURED = "as the brokers' configuration says"
NO_LIMIT = "no limit"

_ALERT_MAX = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    field: str  # of QueuePolicy
    option: str  # without its dashes; also what --reset calls it
    metavar: str
    help: str
    parse: Callable[[str], object]  # raises ValueError
    label: str  # at most 18 characters, so that values line up
    show: Callable[[object], str] = str
    default: str = CONFIGURED  # what is shown if it is not set
    is_many: bool = False  # the option may be repeated, and the field is a list
    goes_with: str = ""  # an option without which it means nothing


def _shown_ms(value: object) -> str:
    return (times.shown_duration(value) if value else "0") if isinstance(value, int) else str(value)


def _shown_number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _shown_rate(value: object) -> str:
    return times.shown_rate(value) if isinstance(value, int | float) else str(value)


def _shown_shape(value: object) -> str:
    return word(value) if isinstance(value, RetryShape) else str(value)


def _shown_each(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def _shown_tenants(value: object) -> str:
    tenants = value if isinstance(value, Sequence) else ()
    return "\n".join(shown_tenant(policy) for policy in tenants if isinstance(policy, TenantPolicy))


def _duration(field: str, option: str, help_text: str, low: str, high: str, default: str = CONFIGURED) -> Setting:
    label = option.replace("-", " ")
    return Setting(field, option, "TIME", help_text, times.duration_between_ms(low, high), label, _shown_ms, default)


def _cap(field: str, option: str, help_text: str) -> Setting:
    label = option.replace("-", " ")
    return Setting(field, option, "N", help_text, whole(1, CAP_MAX), label, _shown_number, NO_LIMIT)


def _rate(field: str, option: str, whose: str) -> Setting:
    help_text = f"How many {whose} may start in a time: 10/s, 100/m."
    return Setting(
        field, option, "RATE", help_text, times.rate_per_second, option.replace("-", " "), _shown_rate, NO_LIMIT
    )


def _burst(field: str, option: str, rate: str) -> Setting:
    return Setting(
        field, option, "N", f"How many at once, with --{rate}; one second's worth.", whole(1, CAP_MAX),
        option.replace("-", " "), _shown_number, "one second's worth", goes_with=rate,
    )  # fmt: skip


SETTINGS = (
    Setting("max_attempts", "max-attempts", "N", "Failures before a task is dead.", whole(1, 1_000), "max attempts"),
    Setting("max_claims", "max-claims", "N", "Claims before a task is dead.", whole(1, 10_000), "max claims"),
    Setting(
        "retry_shape",
        "retry-shape",
        words(RetryShape),
        "How delays between attempts grow.",
        one_of(RetryShape),
        "retry shape",
        _shown_shape,
    ),
    _duration("retry_base_ms", "retry-base", "Delay before the second attempt: 500ms, 1s.", "0", "366d"),
    Setting(
        "retry_factor",
        "retry-factor",
        "X",
        "Growth of that delay each time: 1 to 100.",
        number(1, 100),
        "retry factor",
        _shown_number,
    ),
    _duration("retry_cap_ms", "retry-cap", "The longest delay between attempts: 1h.", "0", "366d"),
    Setting(
        "retry_jitter",
        "retry-jitter",
        "X",
        "Random part of a delay: 0 to 1, e.g. 0.2.",
        number(0, 1),
        "retry jitter",
        _shown_number,
    ),
    Setting(
        "non_retryable",
        "non-retryable",
        "TYPE",
        "An error after which a task is dead at once; may be repeated.",
        str,
        "non-retryable",
        _shown_each,
        "no type of error",
        is_many=True,
    ),
    _duration("timeout_ms", "task-timeout", "How long one attempt may run: 15m.", "1s", "30d", NO_LIMIT),
    _duration("ttl_ms", "ttl", "Not started so long after it could have been: dead.", "1s", "366d", NO_LIMIT),
    _duration("dedup_window_ms", "dedup-window", "How long a request id is remembered: 1d.", "1s", "366d"),
    _duration("result_ttl_ms", "result-ttl", "How long a result is kept: 1d.", "0", "3660d"),
    _duration(
        "finished_retention_ms", "finished-retention", "How long a finished task can be looked up: 10m.", "10m", "3660d"
    ),
    _duration("dead_retention_ms", "dead-retention", "How long a dead letter is kept: 14d.", "1ms", "3660d"),
    Setting(
        "oldest_share_percent",
        "oldest-share",
        "PERCENT",
        "Share of claims for the oldest task; 0 is strict priority.",
        whole(0, 100),
        "oldest share",
        lambda value: f"{value} %",
    ),
    _cap("concurrency_max", "concurrency", "How many run at once, of the whole queue."),
    _cap("tenant_concurrency_max", "tenant-concurrency", "… of each tenant."),
    _cap("key_concurrency_max", "key-concurrency", "… of each limit key."),
    _rate("rate_per_second", "rate", "of the queue"),
    _burst("rate_burst", "burst", "rate"),
    _rate("tenant_rate_per_second", "tenant-rate", "of each tenant"),
    _burst("tenant_rate_burst", "tenant-burst", "tenant-rate"),
    _rate("key_rate_per_second", "key-rate", "of each limit key"),
    _burst("key_rate_burst", "key-burst", "key-rate"),
    Setting(
        "tenants",
        "tenant",
        "NAME:…",
        "What one tenant has: NAME:weight=3,concurrency=5,rate=10/s,burst=20; may be repeated.",
        tenant,
        "tenants",
        _shown_tenants,
        "all alike",
        is_many=True,
    ),
    Setting(
        "dead_alert_at",
        "dead-alert",
        "N",
        "As many dead letters on a shard raise an alert.",
        whole(1, _ALERT_MAX),
        "dead alert",
        _shown_number,
        "no alert",
    ),
    Setting("dead_alert_url", "dead-alert-url", "URL", "Gets a POST when that happens.", str, "dead alert url"),
)
BY_OPTION = {setting.option: setting for setting in SETTINGS}
# What --reset also takes: the names of fields. To pause is a command of its own, and a field like the others.
FIELDS = {setting.field: setting.option for setting in SETTINGS} | {"paused": "paused"}


def rows(policy: QueuePolicy) -> list[tuple[str, str]]:
    """All settings of a queue for people: a label and a value each. A burst is told only where there is a rate."""
    found = []
    for setting in SETTINGS:
        value = getattr(policy, setting.field)
        is_set = value is not None and value != ()
        rate = BY_OPTION.get(setting.goes_with)
        if is_set or rate is None or getattr(policy, rate.field) is not None:
            found.append((setting.label, setting.show(value) if is_set else setting.default))
    return found
