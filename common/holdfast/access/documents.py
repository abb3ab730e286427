"""Policies as texts: JSON, as in the map of a cluster and on the wire, and TOML, as people write it."""

import json
import tomllib

from holdfast.access.fields import AccessPolicyError
from holdfast.access.policies import POLICY_BYTES_MAX, AccessPolicy


def from_json(data: bytes) -> AccessPolicy:
    """Raises AccessPolicyError."""
    _check_size(data)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AccessPolicyError("", "valid JSON", _brief(error)) from None
    return AccessPolicy.read(values)


def from_toml(data: bytes) -> AccessPolicy:
    """Raises AccessPolicyError."""
    _check_size(data)
    try:
        values = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:
        raise AccessPolicyError("", "valid TOML", _brief(error)) from None
    return AccessPolicy.read(values)


def from_file(name: str, data: bytes) -> AccessPolicy:
    """By the ending of the file's name: JSON for .json, otherwise TOML."""
    return from_json(data) if name.endswith(".json") else from_toml(data)


def to_json(policy: AccessPolicy) -> bytes:
    """The same bytes for the same policy."""
    return json.dumps(policy.mapping(), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _check_size(data: bytes) -> None:
    if len(data) > POLICY_BYTES_MAX:
        raise AccessPolicyError("", f"at most {POLICY_BYTES_MAX} bytes", f"there are {len(data)}")


def _brief(error: Exception) -> str:
    return (str(error) or type(error).__name__)[:200]
