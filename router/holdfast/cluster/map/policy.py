"""What a queue does in its own way, as the map has it, and how it changes. Pure: one policy in, the next one out.

Reading is lenient: a record may be by a newer version with other limits, so only types are checked. Changing is strict:
every value is held against its limits, and a policy that contradicts itself is refused.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as fields_of
from typing import Any
from urllib.parse import urlsplit

from holdfast.cluster.map.fields import Fields, encode
from holdfast.serving.refusals import INVALID_FIELD, MISSING_FIELD, OUT_OF_RANGE, TOO_LARGE, RefusedError

RETRY_SHAPES = ("exponential", "linear", "fixed")
NON_RETRYABLE_MAX = 64
TENANTS_MAX = 256
TEXT_BYTES_MAX = 256  # of the name of a tenant, or of a type of errors
URL_BYTES_MAX = 512
POLICY_BYTES_MAX = 64 * 1024  # as JSON; the message that goes into the log of a shard is smaller

_MINUTE_MS = 60_000
_DAY_MS = 24 * 60 * _MINUTE_MS
_YEAR_MS = 366 * _DAY_MS
_CAP: tuple[float, float] = (1, 1_000_000)  # of claims at the same time, and of a burst
_RATE: tuple[float, float] = (0.001, 1_000_000)  # buckets count in thousandths of a claim per second

# As the brokers take them for all queues in their configuration, or for a single task.
POLICY_LIMITS: Mapping[str, tuple[float, float]] = {
    "max_attempts": (1, 1000),
    "max_claims": (1, 10_000),
    "retry_base_ms": (0, _YEAR_MS),
    "retry_factor": (1, 100),
    "retry_cap_ms": (0, _YEAR_MS),
    "retry_jitter": (0, 1),
    "dedup_window_ms": (1000, _YEAR_MS),
    "result_ttl_ms": (0, 10 * _YEAR_MS),
    "finished_retention_ms": (10 * _MINUTE_MS, 10 * _YEAR_MS),
    "dead_retention_ms": (1, 10 * _YEAR_MS),
    "oldest_share_percent": (0, 100),
    "timeout_ms": (1000, 30 * _DAY_MS),
    "ttl_ms": (1000, _YEAR_MS),
    "concurrency_max": _CAP,
    "tenant_concurrency_max": _CAP,
    "key_concurrency_max": _CAP,
    "rate_per_second": _RATE,
    "rate_burst": _CAP,
    "tenant_rate_per_second": _RATE,
    "tenant_rate_burst": _CAP,
    "key_rate_per_second": _RATE,
    "key_rate_burst": _CAP,
    "dead_alert_at": (1, 1_000_000_000),
}
TENANT_LIMITS: Mapping[str, tuple[float, float]] = {
    "weight": (1, 100),
    "concurrency_max": _CAP,
    "rate_per_second": _RATE,
    "rate_burst": _CAP,
}
FRACTIONS = frozenset(
    ("retry_factor", "retry_jitter", "rate_per_second", "tenant_rate_per_second", "key_rate_per_second")
)
_TEXTS = frozenset(("retry_shape", "dead_alert_url"))
_RATE_OF_BURST = {
    "rate_burst": "rate_per_second",
    "tenant_rate_burst": "tenant_rate_per_second",
    "key_rate_burst": "key_rate_per_second",
}
# The first of each pair must not exceed the second, if a queue sets both.
_ORDERED = (("retry_base_ms", "retry_cap_ms"), ("max_attempts", "max_claims"))

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_URL = re.compile(r"https?://[!-~]+")
_ONE_TENANT = "tenants."
# What is cleared of one tenant: tenant_weight.NAME. The field comes first, because names may have any characters.
_TENANT_FIELDS: Mapping[str, str] = {f"tenant_{name}": name for name in TENANT_LIMITS}


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRecord:
    """What one tenant has in its own way; what is None is as for every tenant of the queue."""

    tenant: str
    weight: int | None = None
    concurrency_max: int | None = None
    rate_per_second: float | None = None
    rate_burst: int | None = None

    def given(self) -> dict[str, object]:
        """Only what is set, and the name."""
        values = ((name, getattr(self, name)) for name in ("tenant", *TENANT_LIMITS))
        return {name: value for name, value in values if value is not None}

    @property
    def has_any(self) -> bool:
        return any(getattr(self, name) is not None for name in TENANT_LIMITS)

    @classmethod
    def of(cls, fields: Fields) -> "TenantRecord":
        given = {name: _number_of(fields, name) for name in TENANT_LIMITS if fields.has(name)}
        return cls(tenant=fields.text("tenant"), **given)  # type: ignore[arg-type]  # whole where the field is


PolicyValue = bool | int | float | str | Sequence[str] | Sequence[TenantRecord]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRecord:
    """What is None is as the brokers' configuration says."""

    max_attempts: int | None = None
    max_claims: int | None = None
    retry_base_ms: int | None = None
    retry_factor: float | None = None
    retry_cap_ms: int | None = None
    retry_jitter: float | None = None
    dedup_window_ms: int | None = None
    result_ttl_ms: int | None = None
    finished_retention_ms: int | None = None
    dead_retention_ms: int | None = None
    retry_shape: str | None = None
    non_retryable: tuple[str, ...] = ()
    oldest_share_percent: int | None = None
    paused: bool | None = None
    timeout_ms: int | None = None
    ttl_ms: int | None = None
    concurrency_max: int | None = None
    tenant_concurrency_max: int | None = None
    key_concurrency_max: int | None = None
    rate_per_second: float | None = None
    rate_burst: int | None = None
    tenant_rate_per_second: float | None = None
    tenant_rate_burst: int | None = None
    key_rate_per_second: float | None = None
    key_rate_burst: int | None = None
    dead_alert_at: int | None = None
    dead_alert_url: str | None = None  # empty: nobody is called, whatever the configuration says
    tenants: tuple[TenantRecord, ...] = ()  # by name

    def given(self) -> dict[str, object]:
        """Only what is set, as JSON has it."""
        found: dict[str, object] = {}
        for name in POLICY_FIELDS:
            value = getattr(self, name)
            if value is not None and value != ():
                found[name] = value
        if self.tenants:
            found["tenants"] = [tenant.given() for tenant in self.tenants]
        return found

    @classmethod
    def of(cls, fields: Fields) -> "PolicyRecord":
        given = {name: _value_of(fields, name) for name in fields.names() if name in _KNOWN}
        return cls(**given)  # type: ignore[arg-type]  # each as its field is


POLICY_FIELDS = tuple(field.name for field in fields_of(PolicyRecord))
NO_POLICY = PolicyRecord()

_KNOWN = frozenset(POLICY_FIELDS)


def _value_of(fields: Fields, name: str) -> object:
    if name in POLICY_LIMITS:
        return _number_of(fields, name)
    if name in _TEXTS:
        return fields.text(name)
    if name == "paused":
        return fields.flag(name)
    if name == "non_retryable":
        return fields.texts(name)
    return tuple(TenantRecord.of(inner) for inner in fields.inners(name))


def _number_of(fields: Fields, name: str) -> int | float:
    return fields.number(name) if name in FRACTIONS else fields.whole(name)


# How it changes


def change_policy(
    policy: PolicyRecord, given: Mapping[str, PolicyValue], clear: Collection[str] = ()
) -> PolicyRecord:  # fmt: skip
    """The queue's next policy, or RefusedError; equal to the present one if nothing differs.

    given: fields to set; a list replaces the one before, but of tenants only what is given of each changes. clear:
    fields that go back to the default, before anything is set; a burst goes with its rate.
    """
    checked: dict[str, Any] = {name: _checked(name, value) for name, value in given.items()}
    cleared = _check_clear(given, clear)
    values = {name: getattr(policy, name) for name in POLICY_FIELDS if name not in cleared}
    tenants = _without_cleared(values.pop("tenants", ()), cleared)
    values["tenants"] = _with_tenants(tenants, checked.pop("tenants", ()))
    found = PolicyRecord(**values | checked)
    _check_together(found)
    return policy if found == policy else found


def _without_cleared(tenants: Sequence[TenantRecord], cleared: Collection[str]) -> dict[str, TenantRecord]:
    found = {tenant.tenant: tenant for tenant in tenants}
    for name in cleared:
        if name.startswith(_ONE_TENANT):
            found.pop(name.removeprefix(_ONE_TENANT), None)
            continue
        field, dot, tenant = name.partition(".")
        if dot and tenant in found:
            found[tenant] = replace(found[tenant], **{_TENANT_FIELDS[field]: None})  # type: ignore[arg-type]  # never the name
    return {name: tenant for name, tenant in found.items() if tenant.has_any}


def _with_tenants(tenants: dict[str, TenantRecord], given: Sequence[TenantRecord]) -> tuple[TenantRecord, ...]:
    """By name. Each has what is given of it, and for the rest what it had."""
    for index, tenant in enumerate(given):
        merged = replace(tenants.get(tenant.tenant, tenant), **tenant.given())  # type: ignore[arg-type]  # its own fields
        if merged.rate_burst is not None and merged.rate_per_second is None:
            raise _burst_alone(f"policy.tenants[{index}].rate_burst", "rate_per_second")
        tenants[tenant.tenant] = merged
    if len(tenants) > TENANTS_MAX:
        raise _too_many("policy.tenants", len(tenants), TENANTS_MAX)
    return tuple(tenants[name] for name in sorted(tenants))


def _check_clear(given: Mapping[str, PolicyValue], clear: Collection[str]) -> set[str]:
    tenants: Sequence[TenantRecord] = given.get("tenants", ())  # type: ignore[assignment]
    named = {
        f"tenant_{field}.{tenant.tenant}" for tenant in tenants for field in tenant.given() if field in TENANT_LIMITS
    }
    for name in clear:
        if name not in _KNOWN and not _is_of_tenant(name):
            raise RefusedError(
                INVALID_FIELD,
                f"Expected {{field}} to name fields of the policy ({', '.join(POLICY_FIELDS)}), tenants.NAME or "
                f"{', '.join(f'{field}.NAME' for field in _TENANT_FIELDS)}, but it has {name[:TEXT_BYTES_MAX]!r}.",
                "clear",
            )
        # All tenants, or one, may be cleared and set: what is set is then all there is.
        if name in named or (name in given and name != "tenants"):
            raise RefusedError(INVALID_FIELD, f"Expected {name} to be set or cleared, but it is both.", "clear")
    bursts = {burst for burst, rate in _RATE_OF_BURST.items() if rate in clear}
    rate, burst = "tenant_rate_per_second.", "tenant_rate_burst."
    return {*clear, *bursts, *(burst + name.removeprefix(rate) for name in clear if name.startswith(rate))}


def _is_of_tenant(name: str) -> bool:
    field, _, tenant = name.partition(".")
    return bool(tenant) and (field == "tenants" or field in _TENANT_FIELDS)


def _check_together(policy: PolicyRecord) -> None:
    for low, high in _ORDERED:
        first, second = getattr(policy, low), getattr(policy, high)
        if first is not None and second is not None and first > second:
            raise RefusedError(
                OUT_OF_RANGE,
                f"Expected {{field}} of at most {high} ({second}), but it is {first}.",
                f"policy.{low}",
                str(second),
            )
    for burst, rate in _RATE_OF_BURST.items():
        if getattr(policy, burst) is not None and getattr(policy, rate) is None:
            raise _burst_alone(f"policy.{burst}", rate)
    size = len(encode(policy.given()))
    if size > POLICY_BYTES_MAX:
        raise RefusedError(
            TOO_LARGE,
            f"Expected {{field}} of at most {POLICY_BYTES_MAX} bytes as JSON, but it would have {size}; shorten names "
            "of tenants or of errors.",
            "policy",
            str(POLICY_BYTES_MAX),
        )


# Single values


def _checked(name: str, value: PolicyValue) -> object:
    field = f"policy.{name}"
    if name in POLICY_LIMITS:
        return _number(field, name, value, POLICY_LIMITS[name])
    if name == "retry_shape":
        if value not in RETRY_SHAPES:
            shapes = ", ".join(RETRY_SHAPES)
            raise RefusedError(
                INVALID_FIELD, f"Expected {{field}} to be one of {shapes}, but it is not.", field, shapes
            )
        return value
    if name == "paused":
        return True if value else None  # by default it is not: nothing to write down
    if name == "dead_alert_url":
        return check_url(value, field)
    if name == "non_retryable":
        return _error_types(value, field)
    if name == "tenants":
        return _tenants(value, field)
    raise RefusedError(INVALID_FIELD, "Expected {field} to be a field of the policy, but it is not.", field)


def _number(field: str, name: str, value: object, limits: tuple[float, float]) -> int | float:
    low, high = limits
    # What is no number at all fails every comparison.
    if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        if name in FRACTIONS:
            return float(value)
        if value == int(value):
            return int(value)
    raise RefusedError(
        OUT_OF_RANGE, f"Expected {{field}} from {low} to {high}, but got {value}.", field, f"{low}..{high}"
    )


def check_url(value: object, field: str) -> str:
    """Where an alert is posted to; empty for nowhere. RefusedError if nobody could be called there."""
    text = str(value)
    size = len(text.encode())
    if size > URL_BYTES_MAX:
        raise _too_long(field, size, URL_BYTES_MAX)
    if text and not _is_url(text):
        raise RefusedError(
            INVALID_FIELD, "Expected {field} to be a URL of http or https, but it is not.", field, "http or https"
        )
    return text


def _is_url(text: str) -> bool:
    if not _URL.fullmatch(text):
        return False
    try:
        parts = urlsplit(text)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _error_types(value: object, field: str) -> tuple[str, ...]:
    names: Sequence[str] = value  # type: ignore[assignment]  # a list on the wire
    if len(names) > NON_RETRYABLE_MAX:
        raise _too_many(field, len(names), NON_RETRYABLE_MAX)
    return tuple(dict.fromkeys(_name(name, f"{field}[{index}]") for index, name in enumerate(names)))


def _tenants(value: object, field: str) -> tuple[TenantRecord, ...]:
    tenants: Sequence[TenantRecord] = value  # type: ignore[assignment]  # a list on the wire
    if len(tenants) > TENANTS_MAX:
        raise _too_many(field, len(tenants), TENANTS_MAX)
    found: dict[str, TenantRecord] = {}
    for index, tenant in enumerate(tenants):
        checked = _tenant(tenant, f"{field}[{index}]")
        if checked.tenant in found:
            raise RefusedError(
                INVALID_FIELD, "Expected {field} to differ from the others, but it is there twice.",
                f"{field}[{index}].tenant",
            )  # fmt: skip
        found[checked.tenant] = checked
    return tuple(found.values())


def _tenant(policy: TenantRecord, field: str) -> TenantRecord:
    _name(policy.tenant, f"{field}.tenant")
    values = {
        name: _number(f"{field}.{name}", name, value, limits)
        for name, limits in TENANT_LIMITS.items()
        if (value := getattr(policy, name)) is not None
    }
    if not values:
        raise RefusedError(
            MISSING_FIELD,
            "Expected {field} to set something of the tenant, but it has a name only; clear tenants.NAME to forget it.",
            field,
        )
    return replace(policy, **values)  # type: ignore[arg-type]  # whole where the field is


def _name(text: str, field: str) -> str:
    size = len(text.encode())
    if not size:
        raise RefusedError(MISSING_FIELD, "Expected {field} to have a name, but it is empty.", field)
    if size > TEXT_BYTES_MAX:
        raise _too_long(field, size, TEXT_BYTES_MAX)
    if _CONTROL.search(text):
        raise RefusedError(INVALID_FIELD, "Expected {field} without control characters, but it has some.", field)
    return text


def _too_long(field: str, size: int, size_max: int) -> RefusedError:
    return RefusedError(
        TOO_LARGE, f"Expected {{field}} of at most {size_max} bytes, but got {size}.", field, str(size_max)
    )


def _too_many(field: str, count: int, count_max: int) -> RefusedError:
    return RefusedError(
        TOO_LARGE, f"Expected at most {count_max} entries in {{field}}, but got {count}.", field, str(count_max)
    )


def _burst_alone(field: str, rate: str) -> RefusedError:
    return RefusedError(INVALID_FIELD, f"Expected {{field}} only together with {rate}, but there is none.", field, rate)
