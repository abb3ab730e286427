"""Who is who. The identity of a replica is `<node name>/<node id>`: the name is given by people, the id lies on the
disk. A node that lost its disk has the same name and is somebody else.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

NAME_LENGTH_MAX: Final = 128

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_LENGTH_MAX}}}")
_NODE_ID: Final = re.compile(r"[0-9a-f]{32}")


def is_name(text: str) -> bool:
    """Whether this can name a node or a cluster."""
    return _NAME.fullmatch(text) is not None


def is_node_id(text: str) -> bool:
    return _NODE_ID.fullmatch(text) is not None


def identity_of(name: str, node_id: str) -> str:
    if not is_name(name):
        raise ValueError(f"Expected a name of letters, digits and '._-', at most {NAME_LENGTH_MAX}, but got {name!r}.")
    if not is_node_id(node_id):
        raise ValueError(f"Expected a node id of 32 hexadecimal digits, but got {node_id!r}.")
    return f"{name}/{node_id}"


def name_of(identity: str) -> str:
    """The node's name in an identity."""
    return identity.partition("/")[0]


def node_list_digest(rows: Iterable[Iterable[str]]) -> bytes:
    """The same for two nodes if and only if they were given the same list: the same fields in the same order."""
    digest = hashlib.sha256()
    for row in rows:
        fields = [field.encode() for field in row]
        digest.update(b"%d;" % len(fields))
        for field in fields:
            digest.update(b"%d:%s" % (len(field), field))  # with its length: two fields must not pass for one
    return digest.digest()
