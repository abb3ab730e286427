"""How commands speak to servers, beside the address: as their options say, or else the environment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.cli.problems import usage
from holdfast.client import InvalidArgument, Tls
from holdfast.client.tls import tls_of
from holdfast.client.tokens import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE

_given: list[Tls] = []  # of the command that runs


@contextmanager
def using_tls(ca: str | None, cert: str | None, key: str | None) -> Iterator[None]:
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


@contextmanager
def using_token_file(path: str | None) -> Iterator[None]:
    """Said as the environment says it, so it goes for all clients of the process."""
    if path is None:
        yield
        return
    before = {name: os.environ.pop(name, None) for name in (TOKEN_VARIABLE, TOKEN_FILE_VARIABLE)}
    os.environ[TOKEN_FILE_VARIABLE] = path
    try:
        yield
    finally:
        del os.environ[TOKEN_FILE_VARIABLE]
        os.environ.update({name: value for name, value in before.items() if value is not None})


def given_tls() -> Tls | None:
    """What options say; None if they say nothing."""
    return _given[-1] if _given else None


def tls() -> Tls | None:
    """None for none."""
    try:
        return given_tls() or tls_of(os.environ)
    except InvalidArgument as error:
        raise usage(f"In the environment: {error.message}") from error
