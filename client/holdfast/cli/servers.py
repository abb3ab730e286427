"""Starts a server in this process. Its code is loaded by name: the light install does not have what it needs."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

from holdfast.cli.problems import CommandFailed, ExitCode, Problem

_BROKER = "holdfast.broker.main"
_ROUTER = "holdfast.router.main"
_REBALANCER = "holdfast.rebalancer.main"

Run = Callable[..., int]


def run_dev(config: Path | None, overrides: dict[str, object], *, as_json: bool) -> int:
    return _run(_BROKER, "dev", config, overrides, as_json=as_json)


def run_broker(config: Path | None, overrides: dict[str, object], *, rebuild: bool, as_json: bool) -> int:
    """`rebuild`: what is in the data directory is moved aside, and comes anew from the other nodes."""
    return _run(_BROKER, "broker", config, overrides, rebuild=rebuild, as_json=as_json)


def run_router(config: Path | None, overrides: dict[str, object], *, as_json: bool) -> int:
    return _run(_ROUTER, "router", config, overrides, as_json=as_json)


def run_rebalance(config: Path | None, overrides: dict[str, object], *, dry_run: bool, as_json: bool) -> int:
    return _run(_REBALANCER, "rebalance", config, overrides, dry_run=dry_run, as_json=as_json)


def _run(module: str, command: str, config: Path | None, overrides: dict[str, object], **switches: bool) -> int:
    try:
        # As its contract says: the function takes the configuration file, the flags, and what is to be other than
        # usual, and returns an exit code.
        run = cast(Run, getattr(importlib.import_module(module), f"run_{command}"))
        return run(config, overrides, **{name: True for name, is_on in switches.items() if is_on})
    except ImportError as error:
        missing = error.name or ""
        package = missing.partition(".")[0]
        # A module of ours that cannot be imported is a fault to be seen, unless the whole server is not there.
        if not missing or (package == "holdfast" and missing not in (module, module.rpartition(".")[0])):
            raise
        name = missing if package == "holdfast" else package
        raise CommandFailed(
            Problem(
                ExitCode.MISSING_EXTRA,
                "MISSING_EXTRA",
                f"`holdfast {command}` needs the package '{name}', which is missing or does not fit: "
                "run  pip install 'holdfast-queue[server]'",
            )
        ) from error
