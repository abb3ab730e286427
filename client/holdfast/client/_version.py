"""Which release this is."""

from functools import cache
from importlib import metadata

DISTRIBUTION = "holdfast"


@cache
def version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"  # run from a source tree that was never installed
