"""`holdfast top`."""

from typing import Annotated

import typer

from holdfast.cli import output, records, top_output
from holdfast.cli import top as top_view
from holdfast.cli.commands import repeating
from holdfast.cli.commands.shared import Address, Json, Timeout, epilog, print_problems, time_limit_s
from holdfast.cli.problems import not_current, shards_missing, usage
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S

_Once = Annotated[bool, typer.Option("--once", help="Look once, and end.")]
_Interval = Annotated[
    float,
    typer.Option("--interval", "-i", parser=time_limit_s, metavar="TIME", help="How often to look.", show_default="2s"),
]
_Sort = Annotated[str, typer.Option("--sort", "-s", help=f"Queues by: {', '.join(top_view.SORTS)}.")]
_Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many queues at most.")]


def top(
    once: _Once = False,
    interval_s: _Interval = 2.0,
    sort: _Sort = "busy",
    limit: _Limit = 15,
    address: Address = DEFAULT_ADDRESS,
    timeout_s: Timeout = DEFAULT_TIMEOUT_S,
    as_json: Json = False,
) -> int:
    """Watch all that goes on, until Ctrl-C: queues, rates, ages, dead letters, workers, nodes and shards.

    oldest: how long the oldest ready task has been in the line. held for: how long the oldest claim has been held.
    in/s, out/s, fail/s: enqueued, succeeded and failed over the last minute.
    With --json it is a line at each look; with --once there is one look only.
    If etcd does not answer, nodes and shards are those of the last known map; with --once the exit code is 8 then.
    """
    if sort not in top_view.SORTS:
        raise usage(f"--sort: Expected one of {', '.join(top_view.SORTS)}, but got {sort!r}.")
    if not once:
        return repeating.watch(
            lambda: top_view.read_view(address, timeout_s),
            lambda seen: top_output.screen(seen, sort, limit),
            lambda seen: _print(seen, sort, limit, as_json=as_json),
            interval_s,
            as_json=as_json,
        )
    seen = top_view.read_view(address, timeout_s)
    _print(seen, sort, limit, as_json=as_json)
    problems = [] if seen.cluster is None else not_current(seen.cluster)
    if seen.missing_shards:
        problems.append(shards_missing(seen.missing_shards))
    return print_problems(problems, as_json=as_json)


def _print(seen: top_view.TopView, sort: str, limit: int, *, as_json: bool) -> None:
    if as_json:
        records.print_json(top_view.view_json(seen, sort, limit), at_once=True)
    else:
        output.show(top_output.screen(seen, sort, limit))


def add_to(app: typer.Typer) -> None:
    examples = ("holdfast top", "holdfast top --sort oldest --limit 40", "holdfast top --once --json | jq .totals")
    app.command(epilog=epilog(*examples))(top)
