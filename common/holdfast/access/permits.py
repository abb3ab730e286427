"""What an identity may do under a policy. Nothing, unless a role says so."""

import re
from collections.abc import Iterable
from functools import cached_property
from typing import Final

from holdfast.access.identities import Identity
from holdfast.access.policies import EVERYTHING, AccessPolicy, Role
from holdfast.access.rights import EVERY_QUEUE, EVERY_TENANT, RIGHTS, Reach, Right

QUEUES_REMEMBERED: Final = 1024  # for each identity and right

_NO_TENANT: Final = frozenset[str]()


class Permit:
    """What an identity may do with one right: in which queues, and with whose tasks. Remembers what it was asked."""

    def __init__(self, roles: Iterable[Role]) -> None:
        self._given = frozenset((role.queues, role.tenants) for role in roles if role.tenants is None or role.tenants)
        self._rules = [(_pattern(queues), tenants) for queues, tenants in self._given]
        self._found: dict[str, frozenset[str] | None] = {}
        self.is_everything = any(pattern is None and tenants is None for pattern, tenants in self._rules)
        self.is_something = bool(self._rules)

    def tenants_of(self, queue: str) -> frozenset[str] | None:
        """Whose tasks of a queue; None for those of all tenants and of none, the empty set if nobody's."""
        try:
            return self._found[queue]
        except KeyError:
            found = self._find(queue)
        if len(self._found) >= QUEUES_REMEMBERED:
            self._found.clear()
        self._found[queue] = found
        return found

    def allows(self, queue: str | None, tenant: str | None) -> bool:
        """`EVERY_QUEUE` and `EVERY_TENANT`: everything has to be allowed."""
        if queue is EVERY_QUEUE:
            return self.is_everything
        tenants = self.tenants_of(queue)
        return tenants is None or (tenant is not EVERY_TENANT and tenant in tenants)

    def allows_some(self, queue: str) -> bool:
        """Whether there can be tasks in the queue that it is good for."""
        tenants = self.tenants_of(queue)
        return tenants is None or bool(tenants)

    def covers(self, other: "Permit") -> bool:
        """Whether everything that made the other one good for something is here too."""
        return self.is_everything or other._given <= self._given

    def _find(self, queue: str) -> frozenset[str] | None:
        found: frozenset[str] = _NO_TENANT
        for pattern, tenants in self._rules:
            if pattern is None or pattern.fullmatch(queue):
                if tenants is None:
                    return None
                found |= tenants
        return found


class Permits:
    """Of one identity, by right."""

    def __init__(self, identity: Identity, policy: AccessPolicy) -> None:
        roles = [_ALL] if identity.is_server else policy.roles_of(identity.subjects)
        self._of = {right: Permit(role for role in roles if right in role.rights) for right in RIGHTS}
        self._roles = roles

    def of(self, right: Right) -> Permit:
        return self._of[right]

    @cached_property
    def any(self) -> Permit:
        """Of all rights together."""
        return Permit(self._roles)


def decide(policy: AccessPolicy, identity: Identity, right: Right, queue: str | None, tenant: str | None) -> bool:
    """Whether the identity has the right, for the tasks of a tenant in a queue."""
    return Permits(identity, policy).of(right).allows(queue, tenant)


def reaches(permit: Permit, reach: Reach) -> bool:
    """Whether it can be good for any call that reaches so far: looked at before the request is read."""
    return permit.is_everything if reach is Reach.CLUSTER else permit.is_something


_ALL: Final = Role(frozenset(RIGHTS), (EVERYTHING,))


def _pattern(queues: tuple[str, ...]) -> re.Pattern[str] | None:
    """None matches every name."""
    if EVERYTHING in queues:
        return None
    return re.compile("|".join(re.escape(pattern).replace(r"\*", ".*") for pattern in queues) or r"(?!)")
