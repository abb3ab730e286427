"""Starts a server in this process. Its code is loaded by name: the light install does not have what it needs."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from holdfast.cli.problems import CommandFailed, ExitCode, Problem

_MODULE = "holdfast.broker.main"

Run = Callable[..., int]


def run_dev(config: Path | None, overrides: dict[str, object]) -> int:
    return _run("dev", "run_dev", config, overrides)


def run_broker(config: Path | None, overrides: dict[str, object], *, rebuild: bool) -> int:
    """`rebuild`: what is in the data directory is moved aside, and comes anew from the other nodes."""
    return _run("broker", "run_broker", config, overrides, **({"rebuild": True} if rebuild else {}))


def _run(command: str, function: str, config: Path | None, overrides: dict[str, object], **more: object) -> int:
    try:
        # As its contract says: the function takes the configuration file and the flags, and returns an exit code.
        run = cast(Run, getattr(importlib.import_module(_MODULE), function))
        return run(config, overrides, **more)
    except ImportError as error:
        missing = error.name or ""
        package = missing.partition(".")[0]
        # A module of ours that cannot be imported is a fault to be seen, unless the whole server is not there.
        if not missing or (package == "holdfast" and missing not in (_MODULE, "holdfast.broker")):
            raise
        name = missing if package == "holdfast" else package
        raise CommandFailed(
            Problem(
                ExitCode.MISSING_EXTRA,
                "MISSING_EXTRA",
                f"`holdfast {command}` needs the package '{name}', which is missing or does not fit: "
                "run  pip install 'holdfast[server]'",
            )
        ) from error
