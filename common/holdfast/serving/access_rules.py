"""The access rules that a server goes by: those in the map of its cluster, or else those in its file, which is read
again when it changes. Without either everybody may do everything, unless the server was told otherwise.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.access.documents import from_file
from holdfast.access.fields import AccessPolicyError
from holdfast.access.policies import POLICY_BYTES_MAX, AccessPolicy
from holdfast.serving.authentication import Authentication
from holdfast.serving.authorization import Guard
from holdfast.serving.jwts import Jwts
from holdfast.serving.logs import get_logger
from holdfast.serving.router_word import RouterSecret, RouterWords, read_secret
from holdfast.serving.served import Answer, CallContext, Carried, CompletedCall, Served

POLL_SECONDS: Final = 1.0

Begin = Callable[[CallContext], Answer]

_log = get_logger(__name__)


class AccessFileError(Exception):
    """The file cannot be read, or has no rules that could be used."""


class AccessFile:
    """All methods block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = self._sight()  # before it is read: what changes meanwhile is seen the next time
        self.policy = self._read()
        self.problem = ""  # why the newest file is not in use

    def poll(self) -> bool:
        """Whether there are other rules. A file that is of no use leaves the last good ones in force."""
        seen = self._sight()
        if seen == self._seen:
            return False
        self._seen = seen
        try:
            self.policy = self._read()
        except AccessFileError as error:
            self.problem = str(error)
            _log.error("access_file_not_read", error=self.problem)
            return False
        self.problem = ""
        _log.info("access_file_read", roles=len(self.policy.roles), tokens=len(self.policy.tokens))
        return True

    def _read(self) -> AccessPolicy:
        try:
            with self._path.open("rb") as file:
                data = file.read(POLICY_BYTES_MAX + 1)
        except OSError as error:
            raise AccessFileError(
                f"Expected access rules in {self._path}, but it cannot be read: {error.strerror or error}."
            ) from error
        try:
            return from_file(self._path.name, data)
        except AccessPolicyError as error:
            raise AccessFileError(f"{self._path}: {error}") from None

    def _sight(self) -> tuple[int, int, int] | None:
        """Also behind a link: a mounted file is one that is turned to another."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size


class AccessRules:
    """Of one server. Whoever is told of changes (`on_change`) hears whether there is anything to ask."""

    def __init__(
        self, *, file: AccessFile | None = None, is_required: bool = False, secret: RouterSecret | None = None,
        cluster_id: Callable[[], str] = str, follows_map: bool = False,
    ) -> None:  # fmt: skip
        """`is_required`: without rules nobody is let in. `cluster_id`: in whose words routers are believed.
        `follows_map`: until the map was read (`take`) nobody knows whether there are rules, and nobody is let in."""
        self._file = file
        self._is_required = is_required
        self._awaits_map = follows_map
        self._of_map: AccessPolicy | None = None
        self._jwts: Jwts | None = None
        self.words = RouterWords(secret, cluster_id)
        self.guard = Guard()
        self.on_change: list[Callable[[bool], None]] = []
        self._used: AccessPolicy | None = None
        self._use()

    @classmethod
    def open(
        cls, access_file: Path | None, router_secret_file: Path | None, *, is_required: bool,
        cluster_id: Callable[[], str] = str, follows_map: bool = False,
    ) -> "AccessRules":  # fmt: skip
        """Reads the files; raises AccessFileError or RouterSecretError. Blocks."""
        secret = read_secret(router_secret_file)
        file = None if access_file is None else AccessFile(access_file)
        return cls(
            file=file, is_required=is_required, secret=secret, cluster_id=cluster_id, follows_map=follows_map
        )  # fmt: skip

    @property
    def policy(self) -> AccessPolicy | None:
        """In force; None if there is none."""
        return self._used

    @property
    def is_asked(self) -> bool:
        """Whether calls are asked about."""
        return self._used is not None or self._is_required or self._awaits_map

    def switch(
        self, served: Served, asking: Begin, asking_framed: Callable[[CompletedCall], Carried] | None = None
    ) -> None:
        """From now on it is begun by `asking` (`asking_framed`: in frames) whenever there is something to ask, and
        otherwise as it is now: then nothing is paid for it."""
        plain, plain_framed = served.begin, served.begin_framed

        def choose(is_asked: bool) -> None:
            served.begin = asking if is_asked else plain
            served.begin_framed = (asking_framed or asking) if is_asked else plain_framed

        choose(self.is_asked)
        self.on_change.append(choose)

    def take(self, policy: AccessPolicy | None) -> None:
        """From the map, whenever it changes."""
        if self._awaits_map or policy != self._of_map:
            self._awaits_map = False
            self._of_map = policy
            self._use()

    def _use(self) -> None:
        policy = self._of_map if self._of_map is not None else self._file.policy if self._file is not None else None
        self.guard.awaits_rules = self._awaits_map
        if policy is self._used and policy is not None:
            return
        before, self._used = self._used, policy
        if policy is None:
            self.guard.authentication = None
        else:
            if policy.jwt is None:
                self._jwts = None
            elif before is None or before.jwt != policy.jwt:
                self._jwts = Jwts(policy.jwt)  # otherwise those stay whose keys are known
            self.guard.authentication = Authentication(policy, self.words, self._jwts)
        for listener in self.on_change:
            listener(self.is_asked)
        if self.is_asked:
            self.guard.end_revoked()

    async def run(self) -> None:
        """Until cancelled: reads the file again, and ends what tokens that expire have begun."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self._file is not None and await asyncio.to_thread(self._file.poll):
                self._use()
            elif self.is_asked:
                self.guard.end_revoked()
