"""What `holdfast access` does: reads the access rules of a cluster or of a file, and changes one thing in them."""

import os
import secrets
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.access import editing
from holdfast.access.documents import from_file, to_json
from holdfast.access.fields import AccessPolicyError
from holdfast.access.policies import POLICY_BYTES_MAX, AccessPolicy
from holdfast.access.tokens import make_token
from holdfast.cli.calls import ask
from holdfast.cli.problems import CommandFailed, ExitCode, Problem, usage
from holdfast.client import AsyncClient, Conflict

TRIES_MAX = 5  # while others change the same rules

Change = Callable[[AccessPolicy], AccessPolicy]


@dataclass(frozen=True, slots=True)
class Where:
    """Whose rules: those of a cluster, or of a file."""

    address: str
    timeout_s: float
    file: Path | None = None


@dataclass(frozen=True, slots=True)
class MadeToken:
    """Shown once."""

    name: str
    token_id: str
    text: str
    expires_at_ms: int
    roles: tuple[str, ...]


def read(where: Where) -> tuple[AccessPolicy, int]:
    """The rules and their version, which is 0 if there are none; of a file always 0."""
    if where.file is not None:
        return read_file(where.file), 0
    found = ask(where.address, where.timeout_s, lambda client: client.get_access())
    return _checked(lambda: AccessPolicy.read(found.rules)), found.version


def replace(where: Where, policy: AccessPolicy | None) -> int:
    """Puts these rules in the place of whatever is there; their version."""

    async def question(client: AsyncClient) -> int:
        version = (await client.get_access()).version
        return await client.set_access(None if policy is None else policy.mapping(), version=version)

    return ask(where.address, where.timeout_s, question)


def change(where: Where, make: Change) -> AccessPolicy:
    """The rules after the change."""
    if where.file is not None:
        changed = _checked(lambda: make(read_file(where.file) if where.file.exists() else AccessPolicy()))  # type: ignore[union-attr, arg-type]
        _write(where.file, changed)
        return changed

    async def question(client: AsyncClient) -> AccessPolicy:
        for attempt in range(TRIES_MAX):
            found = await client.get_access()
            changed = _checked(lambda: make(AccessPolicy.read(found.rules)))  # noqa: B023 - called at once
            try:
                await client.set_access(changed.mapping(), version=found.version)
            except Conflict as error:
                if error.metadata.get("why") != "OTHER_VERSION" or attempt == TRIES_MAX - 1:
                    raise
            else:
                return changed
        raise AssertionError("the last try returns or raises")

    return ask(where.address, where.timeout_s, question)


def grant(where: Where, subject: str, roles: Sequence[str]) -> AccessPolicy:
    return change(where, lambda policy: editing.grant(policy, subject, roles))


def revoke(where: Where, subject: str, roles: Sequence[str]) -> AccessPolicy:
    return change(where, lambda policy: editing.revoke(policy, subject, roles))


def create_token(where: Where, name: str, roles: Sequence[str], expires_ms: int | None) -> MadeToken:
    """Only its hash leaves this process."""
    token = make_token(secrets.token_bytes)
    expires_at_ms = 0 if expires_ms is None else time.time_ns() // 1_000_000 + expires_ms
    changed = change(where, lambda policy: editing.add_token(policy, token, name, roles, expires_at_ms))
    return MadeToken(name, token.token_id, token.text, expires_at_ms, changed.grants.get(f"token:{name}", ()))


def revoke_token(where: Where, token_id: str) -> AccessPolicy:
    return change(where, lambda policy: editing.revoke_token(policy, token_id))


def read_file(path: Path) -> AccessPolicy:
    try:
        with path.open("rb") as file:
            data = file.read(POLICY_BYTES_MAX + 1)
    except OSError as error:
        raise usage(f"Expected access rules in {path}, but it cannot be read: {error.strerror or error}.") from None
    return _checked(lambda: from_file(path.name, data), str(path))


def write_token(path: Path, text: str) -> None:
    """For nobody else to read."""
    _replace_file(path, f"{text}\n".encode())


def _write(path: Path, policy: AccessPolicy) -> None:
    if path.suffix != ".json":
        raise usage(
            f"Expected a file whose name ends with .json, but got {path}: others are not changed here, because their "
            "comments would be lost.",
            f"Make one of it: holdfast access show --file {path} --json > access.json",
        )
    _replace_file(path, to_json(policy) + b"\n")


def _replace_file(path: Path, data: bytes) -> None:
    """At once: whoever reads it sees the one before, or this one."""
    try:
        handle, fresh = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(fresh, path)
        except OSError:
            os.unlink(fresh)
            raise
    except OSError as error:
        raise usage(f"Expected to write {path}, but it cannot be written: {error.strerror or error}.") from None


def _checked(make: Callable[[], AccessPolicy], where: str = "") -> AccessPolicy:
    try:
        return make()
    except AccessPolicyError as error:
        message = f"{where}: {error}" if where else str(error)
        raise CommandFailed(Problem(ExitCode.REFUSED, "RULES_REFUSED", message, field=error.field)) from None
