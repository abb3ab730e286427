"""`holdfast queue set|show`: what a queue does in its own way, and over which shards it is spread."""

from dataclasses import fields
from typing import Annotated

import typer

from holdfast.cli import cluster_calls, cluster_output, cluster_records, output, records, times
from holdfast.cli.commands.shared import Address, Json, Queue, Timeout, epilog, parsed
from holdfast.cli.problems import usage
from holdfast.client import QueuePolicy, QueueSettings
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

_FIELDS = tuple(field.name for field in fields(QueuePolicy))
# What can be reset, as the options are called: retry-base is retry_base_ms.
_OPTION_NAMES = {name.removesuffix("_ms").replace("_", "-"): name for name in _FIELDS}
_SHARDS_MAX = 1_024


def _time_option(name: str, help_text: str) -> object:
    return typer.Option(name, metavar="TIME", help=help_text, show_default=False)


_MaxAttempts = Annotated[
    int | None,
    typer.Option("--max-attempts", min=1, metavar="N", help="Failures before a task is dead.", show_default=False),
]
_MaxClaims = Annotated[
    int | None,
    typer.Option("--max-claims", min=1, metavar="N", help="Claims before a task is dead.", show_default=False),
]
_RetryBase = Annotated[str | None, _time_option("--retry-base", "Delay before the second attempt: 500ms, 1s.")]
_RetryFactor = Annotated[
    float | None,
    typer.Option("--retry-factor", min=1.0, metavar="X", help="Growth of that delay each time.", show_default=False),
]
_RetryCap = Annotated[str | None, _time_option("--retry-cap", "The longest delay between attempts: 1h.")]
_RetryJitter = Annotated[
    float | None,
    typer.Option(
        "--retry-jitter", min=0.0, max=1.0, metavar="X", help="Random part of a delay: 0.2.", show_default=False
    ),
]
_DedupWindow = Annotated[str | None, _time_option("--dedup-window", "How long a request id is remembered: 1d.")]
_ResultTtl = Annotated[str | None, _time_option("--result-ttl", "How long a result is kept: 1d.")]
_Finished = Annotated[
    str | None, _time_option("--finished-retention", "How long a finished task can be looked up: 10m.")
]
_Dead = Annotated[str | None, _time_option("--dead-retention", "How long a dead letter is kept: 14d.")]
_Spread = Annotated[
    int | None,
    typer.Option("--spread", min=1, max=_SHARDS_MAX, metavar="N", help="Over so many shards.", show_default=False),
]
_Pin = Annotated[
    str | None, typer.Option("--pin", metavar="SHARD,…", help="On exactly these shards: 3,5.", show_default=False)
]
_Home = Annotated[bool, typer.Option("--home", help="On its home shard alone, as at first.")]
_Reset = Annotated[
    list[str] | None,
    typer.Option(
        "--reset", metavar="NAME", help="Back to the default: retry-base, …; may be repeated.", show_default=False
    ),
]


def queue_set(
    queue: Queue,
    max_attempts: _MaxAttempts = None,
    max_claims: _MaxClaims = None,
    retry_base: _RetryBase = None,
    retry_factor: _RetryFactor = None,
    retry_cap: _RetryCap = None,
    retry_jitter: _RetryJitter = None,
    dedup_window: _DedupWindow = None,
    result_ttl: _ResultTtl = None,
    finished_retention: _Finished = None,
    dead_retention: _Dead = None,
    spread: _Spread = None,
    pin: _Pin = None,
    home: _Home = False,
    reset: _Reset = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Change what a queue does in its own way; what is not given stays as it is.

    Every queue works without this, with the defaults of the brokers' configuration.
    --spread, --pin and --home change the shards of a running queue: new tasks go to the new ones.
    Older tasks stay where they are, and workers get them from there until none is left.
    Deduplication stays exact: tasks with a request id of the producer's own always go to the home shard.
    """
    policy = QueuePolicy(
        max_attempts=max_attempts,
        max_claims=max_claims,
        retry_base_ms=parsed("--retry-base", _duration_ms, retry_base),
        retry_factor=retry_factor,
        retry_cap_ms=parsed("--retry-cap", _duration_ms, retry_cap),
        retry_jitter=retry_jitter,
        dedup_window_ms=parsed("--dedup-window", _duration_ms, dedup_window),
        result_ttl_ms=parsed("--result-ttl", _duration_ms, result_ttl),
        finished_retention_ms=parsed("--finished-retention", _duration_ms, finished_retention),
        dead_retention_ms=parsed("--dead-retention", _duration_ms, dead_retention),
    )
    clear = _cleared(reset or [], policy)
    pinned = None if pin is None else _shards(pin)
    if sum((spread is not None, pinned is not None, home)) > 1:
        raise usage("Expected at most one of --spread, --pin and --home, but there are more.")
    if policy == QueuePolicy() and not clear and spread is None and pinned is None and not home:
        hint = "`holdfast queue show` shows what there is, `holdfast queue set --help` what can be set."
        raise usage("Expected something to set, but there is nothing.", hint)
    settings = cluster_calls.set_queue(address, timeout_s, queue, policy, clear, spread=spread, pin=pinned, home=home)
    _print(settings, as_json=as_json)


def _duration_ms(text: str) -> int:
    return 0 if text.strip() == "0" else times.duration_ms(text)


def _cleared(names: list[str], policy: QueuePolicy) -> list[str]:
    """The fields that go back to the default, by the names of their options or their own."""
    cleared = []
    for name in names:
        field = _OPTION_NAMES.get(name.removeprefix("--"), name)
        if field not in _FIELDS:
            raise usage(f"--reset: Expected one of {', '.join(_OPTION_NAMES)}, but got {name!r}.")
        if getattr(policy, field) is not None:
            raise usage(f"--reset: Expected {name} to be either set or reset, but it is both.")
        cleared.append(field)
    return cleared


def _shards(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and int(part) < _SHARDS_MAX for part in parts):
        raise usage(f"--pin: Expected numbers of shards with commas between them, e.g. 3,5, but got {text!r}.")
    return sorted({int(part) for part in parts})


def queue_show(
    queue: Queue,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Show the settings of a queue and the shards it is on.

    A queue that nobody has changed, or that has no task yet, is on its home shard and has all defaults.
    draining: shards of a former spread that still have tasks; they are served until they are empty.
    """
    _print(cluster_calls.queue_settings(address, timeout_s, queue), as_json=as_json)


def _print(settings: QueueSettings, *, as_json: bool) -> None:
    if as_json:
        records.print_json(cluster_records.settings_json(settings))
    else:
        output.print_rows(cluster_output.settings_rows(settings))


def add_to(queue_app: typer.Typer) -> None:
    shown = ("holdfast queue show mail", "holdfast queue show mail --json | jq .shards")
    queue_app.command("show", epilog=epilog(*shown))(queue_show)
    examples = (
        "holdfast queue set mail --max-attempts 5 --retry-base 2s --retry-cap 10m",
        "holdfast queue set clicks --spread 4",
        "holdfast queue set mail --pin 3,5",
        "holdfast queue set mail --home --reset retry-base",
    )
    queue_app.command("set", epilog=epilog(*examples))(queue_set)
