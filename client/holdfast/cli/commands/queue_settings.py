"""`holdfast queue set|show|pause|resume`: what a queue does in its own way, and over which shards it is spread."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any

import typer

from holdfast.cli import cluster_calls, cluster_output, cluster_records, output, policies, records
from holdfast.cli.commands.shared import Address, Json, Queue, Timeout, epilog, parsed, print_problems, with_options
from holdfast.cli.problems import not_current, usage
from holdfast.client import QueuePolicy, QueueSettings, TenantPolicy
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

_SHARDS_MAX = 1_024
# What --reset calls fields of one tenant, with its name behind a colon, and how they are called.
_OF_ONE_TENANT = {
    "tenant": "tenants",
    "tenant-weight": "tenant_weight",
    "tenant-concurrency": "tenant_concurrency_max",
    "tenant-rate": "tenant_rate_per_second",
    "tenant-burst": "tenant_rate_burst",
}


def _policy_option(setting: policies.Setting) -> Any:
    option = typer.Option(f"--{setting.option}", metavar=setting.metavar, help=setting.help, show_default=False)
    return Annotated[list[str] | None, option] if setting.is_many else Annotated[str | None, option]


_POLICY_OPTIONS = {setting.field: _policy_option(setting) for setting in policies.SETTINGS}
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
        "--reset",
        metavar="NAME",
        help="Back to the default: retry-base, tenant:acme, tenant-rate:acme, …; may be repeated.",
        show_default=False,
    ),
]


@with_options(_POLICY_OPTIONS)
def queue_set(
    queue: Queue,
    *,
    spread: _Spread = None,
    pin: _Pin = None,
    home: _Home = False,
    reset: _Reset = None,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Change what a queue does in its own way; what is not given stays as it is.

    Every queue works without this, with the defaults of the brokers' configuration.
    Caps and rates bound what is claimed: of the whole queue, of each tenant, of each limit key.
    Tenants take turns: one of weight 3 gives three tasks in its turn, the others one.
    --tenant changes what is given of that tenant; with --reset tenant:NAME it has then nothing else.
    --reset tenant-weight:NAME, and -concurrency, -rate, -burst, takes back one setting of it.
    --spread, --pin and --home change the shards of a running queue: new tasks go to the new ones.
    Older tasks stay where they are, and workers get them from there until none is left.
    Deduplication stays exact: tasks with a request id of the producer's own always go to the home shard.
    """
    policy = _policy(given)
    clear = _cleared(reset or [], policy)
    pinned = None if pin is None else _shards(pin)
    if sum((spread is not None, pinned is not None, home)) > 1:
        raise usage("Expected at most one of --spread, --pin and --home, but there are more.")
    if policy == QueuePolicy() and not clear and spread is None and pinned is None and not home:
        hint = "`holdfast queue show` shows what there is, `holdfast queue set --help` what can be set."
        raise usage("Expected something to set, but there is nothing.", hint)
    settings = cluster_calls.set_queue(address, timeout_s, queue, policy, clear, spread=spread, pin=pinned, home=home)
    _print(settings, as_json=as_json)


def _policy(given: Mapping[str, Any]) -> QueuePolicy:
    """Of the texts of the options, by the names of their fields."""
    values: dict[str, Any] = {}
    for setting in policies.SETTINGS:
        texts = given[setting.field]
        option = f"--{setting.option}"
        if setting.is_many:
            values[setting.field] = tuple(parsed(option, setting.parse, text) for text in texts or ())
        else:
            values[setting.field] = parsed(option, setting.parse, texts)
    names = [tenant.tenant for tenant in values["tenants"]]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise usage(f"--tenant: Expected each tenant once, but {min(twice)!r} is there twice.")
    return QueuePolicy(**values)


def _cleared(names: Sequence[str], policy: QueuePolicy) -> list[str]:
    """The fields that go back to the default, by the names of their options or their own."""
    cleared = []
    for given in names:
        name = given.removeprefix("--")
        option, _, tenant = name.partition(":")
        if tenant and option in _OF_ONE_TENANT:
            field = f"{_OF_ONE_TENANT[option]}.{tenant}"
            is_set = field in {f"tenant_{name}.{tenant.tenant}" for tenant in policy.tenants for name in _given(tenant)}
        else:
            setting = policies.BY_OPTION.get(name)
            field = setting.field if setting is not None else name
            if field not in policies.FIELDS:
                known = ", ".join((*policies.BY_OPTION, *(f"{option}:NAME" for option in _OF_ONE_TENANT), "paused"))
                raise usage(f"--reset: Expected one of {known}, but got {given!r}.")
            # Resetting all tenants and setting some is no contradiction: those are then the only ones.
            is_set = field != "tenants" and getattr(policy, field) not in (None, ())
        if is_set:
            raise usage(f"--reset: Expected {given} to be either set or reset, but it is both.")
        cleared.append(field)
    return cleared


def _given(tenant: TenantPolicy) -> list[str]:
    return [field.name for field in fields(TenantPolicy) if getattr(tenant, field.name) is not None]


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
) -> int:
    """Show the settings of a queue and the shards it is on.

    A queue that nobody has changed, or that has no task yet, is on its home shard and has all defaults.
    draining: shards of a former spread that still have tasks; they are served until they are empty.
    If etcd does not answer, this is as the last known map has it, and the exit code is 8.
    """
    settings, info = cluster_calls.queue_settings(address, timeout_s, queue)
    if as_json:
        records.print_json(cluster_records.shown_settings_json(settings, info))
    else:
        output.show([] if info is None else cluster_output.last_known_parts(info))
        output.print_rows(cluster_output.settings_rows(settings))
    return print_problems([] if info is None else not_current(info), as_json=as_json)


def queue_pause(
    queue: Queue,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Hand out no more tasks of a queue, within about a second.

    It still takes new tasks, and what workers have claimed goes on to its end.
    `holdfast queue resume` takes it back; until then the pause outlives restarts.
    """
    settings, is_known = cluster_calls.pause_queue(address, timeout_s, queue, paused=True)
    if as_json:
        records.print_json(cluster_records.settings_json(settings))
        return
    output.print_line(f"Queue {queue} is paused: nothing is handed out until `holdfast queue resume {queue}`.")
    if not is_known:
        output.print_note("It has no task yet. If that is a surprise, check the name with `holdfast queue ls`.")


def queue_resume(
    queue: Queue,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Hand out the tasks of a paused queue again. One that is not paused stays as it is."""
    settings, is_known = cluster_calls.pause_queue(address, timeout_s, queue, paused=False)
    if as_json:
        records.print_json(cluster_records.settings_json(settings))
        return
    output.print_line(f"Queue {queue} is not paused: its tasks are handed out.")
    if not is_known:
        output.print_note("It has no task yet. If that is a surprise, check the name with `holdfast queue ls`.")


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
        "holdfast queue set mail --concurrency 50 --rate 100/m --burst 20",
        "holdfast queue set mail --tenant acme:weight=3,rate=10/s --tenant-concurrency 5",
        "holdfast queue set mail --dead-alert 100 --dead-alert-url https://example.org/alert",
        "holdfast queue set clicks --spread 4",
        "holdfast queue set mail --home --reset retry-base --reset tenant-rate:acme --reset tenant:globex",
    )
    queue_app.command("set", epilog=epilog(*examples))(queue_set)
    queue_app.command("pause", epilog=epilog("holdfast queue pause mail", "holdfast queue pause mail --json"))(
        queue_pause
    )
    queue_app.command("resume", epilog=epilog("holdfast queue resume mail", "holdfast queue resume mail --json"))(
        queue_resume
    )
