"""Who calls.

Roles are granted to subjects: `token:NAME`, `certificate:NAME`, `jwt:CLAIM=VALUE` and `anonymous`. A caller is an
identity with one or several of them: a JWT has one for each claim to which something was granted.
"""

import re
from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["token", "certificate", "jwt", "node", "router", "anonymous"]

ANONYMOUS_SUBJECT: Final = "anonymous"
NAME_CHARS_MAX: Final = 128
SUBJECT_CHARS_MAX: Final = 300
SUBJECTS_MAX: Final = 32  # of one identity

# Of a token: what people call it. Names of certificates and values of claims may be anything that can be printed.
NAME: Final = re.compile(rf"[A-Za-z0-9._@-]{{1,{NAME_CHARS_MAX}}}")
_SUBJECT: Final = re.compile(
    rf"{ANONYMOUS_SUBJECT}|token:{NAME.pattern}|certificate:[!-~]{{1,256}}|jwt:[A-Za-z0-9_.:/-]{{1,64}}=[ -~]{{1,200}}"
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who was authenticated, or who need not be."""

    name: str
    kind: Kind
    subjects: tuple[str, ...] = ()

    @property
    def is_server(self) -> bool:
        """A server of this cluster: what it does on its own account is not asked about again."""
        return self.kind in ("node", "router")

    def __str__(self) -> str:
        return self.name if self.kind == "anonymous" else f"{self.kind}:{self.name}"


ANONYMOUS: Final = Identity("anonymous", "anonymous", (ANONYMOUS_SUBJECT,))


def is_subject(text: str) -> bool:
    """Whether something can be granted to it."""
    return len(text) <= SUBJECT_CHARS_MAX and _SUBJECT.fullmatch(text) is not None


def of_token(name: str) -> Identity:
    return Identity(name, "token", (f"token:{name}",))
