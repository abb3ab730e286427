"""The distribution `holdfast-queue`: which version this is, and whether the name `holdfast` is its own.

Programs import `holdfast.client`. This package stands beside it because PyPI has another program with the name
`holdfast`: its `holdfast/__init__.py` can hide all of ours, and then only code outside of `holdfast` can say so.
"""

import importlib.util
from functools import cache
from importlib import metadata

DISTRIBUTION = "holdfast-queue"


class NameTakenError(ImportError):
    """Another program named `holdfast` is installed too; the message says what to do."""


@cache
def version() -> str:
    """Reads a file, once: workers tell it with each sign of life."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a source tree that was never installed


def refuse_namesake() -> None:
    """Raises `NameTakenError` if the other program is there. Its code is not run by that.

    It costs nothing where all is well: ours is spread over several folders, and such a package has no file of its own.
    One that has a file is not by itself a fault, because some build tools give every folder an `__init__.py`.
    """
    spec = importlib.util.find_spec("holdfast")
    if spec is None or spec.origin is None:
        return
    try:
        other = metadata.version("holdfast")
    except metadata.PackageNotFoundError:
        return
    raise NameTakenError(
        f"Expected {DISTRIBUTION} to have the name `holdfast` for itself, but another program of that name (holdfast "
        f"{other}) is installed too, and its {spec.origin} is in the way: run  pip uninstall holdfast"
    )
