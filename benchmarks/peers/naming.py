"""Classes by name: a row's libraries are imported only where that row is measured."""

import importlib
from typing import Any


def named(what: str) -> Any:
    """What "module:name" stands for."""
    module, _, name = what.partition(":")
    return getattr(importlib.import_module(module), name)
