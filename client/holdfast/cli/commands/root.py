"""The root of the command tree: puts the groups together and runs a command line.

A command line loads only the file that has its command: all of them would take a server a seventh of its start.
"""

import importlib
import os
import platform
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import typer
import typer.main

import holdfast_queue
from holdfast.cli import output, records
from holdfast.cli.commands.shared import Json, add_connection_options, epilog
from holdfast.cli.problems import CommandFailed, ExitCode, Problem

# Which file of this folder has commands and groups of which names, in the order of the help. A group may be in several.
FILES = {
    "servers": ("dev", "broker", "router"),
    "tasks": ("enqueue", "task"),
    "task_lists": ("task", "claims"),
    "worker": ("worker",),
    "workers": ("workers",),
    "top": ("top",),
    "queues": ("queue",),
    "schedules": ("schedule",),
    "dlq": ("dlq",),
    "cluster": ("cluster",),
    "nodes": ("node",),
    "shards": ("shard",),
    "rebalance": ("rebalance",),
    "backups": ("backup",),
    "certs": ("certs",),
    "access": ("access",),
    "audit": ("audit",),
    "bench": ("bench",),
}
_HELP = "Holdfast is a task queue that does not let go of a task. Start with `holdfast dev`, then enqueue something."
_EXAMPLES = (
    "holdfast dev",
    'holdfast enqueue mail welcome \'{"to": "ada@example.org"}\'',
    "holdfast worker tasks:app",
    "holdfast queue ls",
)


def make_app(files: Iterable[str] = FILES) -> typer.Typer:
    """With the commands of these files, and those that are here."""
    app = typer.Typer(
        name="holdfast",
        help=_HELP,
        epilog=epilog(*_EXAMPLES),
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
    )
    for file in files:
        importlib.import_module(f"{__package__}.{file}").add_to(app)
    app.command(epilog=epilog("holdfast version --json"))(version)
    add_connection_options(app)
    return app


def version(as_json: Json = False) -> None:
    """Show the version of this command."""
    versions = {"version": holdfast_queue.version(), "python": platform.python_version()}
    if as_json:
        records.print_json(versions)
    else:
        output.print_version(versions)


# The base of everything that is wrong with a command line. Its name and home differ between releases of typer, and an
# application that uses the client library may pin any of them; that a bad parameter is one of its kind does not.
COMMAND_LINE_ERROR: type[Exception] = [kind for kind in typer.BadParameter.__mro__ if issubclass(kind, Exception)][-2]


_NO_DETECTION = "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command line; `CommandFailed` if it is wrong, and whatever else its command raises."""
    try:
        is_shell_named = len(arguments) > 1 and arguments[0] in ("--show-completion", "--install-completion")
        tree = _tree(_files_for(arguments), is_shell_named)
        code = tree.main(args=list(arguments), prog_name="holdfast", standalone_mode=False)
    except COMMAND_LINE_ERROR as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # it has printed the help already
            return ExitCode.USAGE
        raise CommandFailed(_usage_problem(error)) from error
    except typer.Abort:
        return ExitCode.INTERRUPTED
    return code if isinstance(code, int) else ExitCode.OK


def _files_for(arguments: Sequence[str]) -> tuple[str, ...]:
    """All of them, unless it begins with a command or a group: help, completion and mistakes concern all."""
    word = arguments[0] if arguments else ""
    return tuple(file for file, words in FILES.items() if word in words) or tuple(FILES)


@cache
def _tree(files: tuple[str, ...], is_shell_named: bool) -> Any:
    """The commands of these files. `--show-completion zsh` means zsh; unless told not to, typer looks which shell this
    is, and takes that."""
    before = os.environ.get(_NO_DETECTION)
    if is_shell_named:
        os.environ[_NO_DETECTION] = "1"
    try:
        return typer.main.get_command(make_app(files))
    finally:
        if is_shell_named and before is None:
            del os.environ[_NO_DETECTION]


def _usage_problem(error: Exception) -> Problem:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "holdfast"
    message = error.format_message() if hasattr(error, "format_message") else str(error)
    return Problem(ExitCode.USAGE, "USAGE", message, f"See `{command} --help`.")
