"""How commands speak to servers, beside the address: as their options say, or else the environment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.cli.problems import usage
from holdfast.client import InvalidArgument, Tls
from holdfast.client.tls import tls_of

_given: list[Tls] = []  # of the command that runs


@contextmanager
def using(ca: str | None, cert: str | None, key: str | None) -> Iterator[None]:
    """What the options of a command say."""
    if ca is None and cert is None and key is None:
        yield
        return
    try:
        _given.append(Tls(ca, cert, key))
    except InvalidArgument as error:
        raise usage(error.message) from error
    try:
        yield
    finally:
        _given.pop()


def given_tls() -> Tls | None:
    """What options say; None if they say nothing."""
    return _given[-1] if _given else None


def tls() -> Tls | None:
    """None for none."""
    try:
        return given_tls() or tls_of(os.environ)
    except InvalidArgument as error:
        raise usage(f"In the environment: {error.message}") from error
