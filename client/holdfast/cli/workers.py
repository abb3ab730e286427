"""Loads an application by its name and runs a worker for it."""

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from types import ModuleType

from holdfast.cli import connecting, output
from holdfast.cli.problems import CommandFailed, usage
from holdfast.cli.worker_logs import logging_to_stderr
from holdfast.client import Holdfast, HoldfastError, InvalidArgument, Worker, WorkerReport

log = logging.getLogger("holdfast.worker")

_EXAMPLE = "for `app = Holdfast()` in tasks.py write tasks:app"
_APPS_NAMED_MAX = 5
_LIMIT_MAX = 1_000


def queue_limits(texts: Sequence[str]) -> dict[str, int | None]:
    """Names of queues, each with an optional limit: `mail` or `mail:5`."""
    limits: dict[str, int | None] = {}
    for text in texts:
        queue, colon, number = text.partition(":")
        if not queue or (colon and not (number.isascii() and number.isdecimal() and 0 < int(number) <= _LIMIT_MAX)):
            raise usage(f"--queue: Expected QUEUE or QUEUE:N with N from 1 to {_LIMIT_MAX:,}, but got {text!r}.")
        if queue in limits:
            raise usage(f"--queue: Expected each queue once, but {queue!r} is there twice.")
        limits[queue] = int(number) if colon else None
    return limits


def load_app(name: str) -> Holdfast:
    """The application called MODULE:APP. Modules are also looked for in the current directory."""
    module_name, colon, path = name.partition(":")
    if not colon or not module_name or not path:
        hint = f"For example: {_EXAMPLE}."
        if name in ("ls", "list", "quiet", "resume", "stop"):
            hint = "`holdfast workers` lists those that run; `holdfast workers stop NAME` stops one."
        raise usage(f"Expected MODULE:APP, but got {name!r}.", hint)
    if "/" in module_name or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").strip("./").replace("/", ".")
        raise usage(f"Expected a module, but {module_name!r} is a file.", f"Write it with dots: {dotted}:{path}")
    found: object = _import(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise _missing_attribute(module_name, path, part) from None
    if not isinstance(found, Holdfast):
        kind = "a module" if isinstance(found, ModuleType) else f"of type {type(found).__name__}"
        hint = _apps_hint(module_name) or "It must be made by `Holdfast(…)`."
        raise usage(f"Expected {name} to be a Holdfast app, but it is {kind}.", hint)
    return found


def _import(module_name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if module_name == missing or module_name.startswith(f"{missing}."):
            message = f"There is no module {missing!r} in {here} or among the installed packages."
            hint = "Run the worker in the directory that holds it, or set PYTHONPATH."
            raise usage(message, hint) from None
        raise _broken(module_name, error) from error
    except (Exception, SystemExit) as error:  # it is the user's code: anything can come out of it
        raise _broken(module_name, error) from error


def _broken(module_name: str, error: BaseException) -> CommandFailed:
    """The last line of the traceback, and the last place of it."""
    last = traceback.format_exception_only(error)[-1].strip()
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    if isinstance(error, SyntaxError):
        place = f"{error.filename}:{error.lineno}"
    if not place or place.startswith("<frozen"):
        theirs = [frame for frame in frames if not frame.filename.startswith("<frozen") and frame.filename != __file__]
        place = f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else ""
    where = f" ({place})" if place else ""
    return usage(f"Importing {module_name!r} failed: {last}{where}", f"Try it alone:  python -c 'import {module_name}'")


def _missing_attribute(module_name: str, path: str, part: str) -> CommandFailed:
    what = f"{part!r}" if part == path else f"{path!r} (no {part!r})"
    hint = _apps_hint(module_name) or f"For example: {_EXAMPLE}."
    return usage(f"Module {module_name!r} has no {what}.", hint)


def _apps_hint(module_name: str) -> str:
    """The applications that the module does have."""
    names = [name for name, value in vars(sys.modules[module_name]).items() if isinstance(value, Holdfast)]
    apps = " or ".join(f"{module_name}:{name}" for name in names[:_APPS_NAMED_MAX])
    return f"It has {apps}." if apps else ""


def run(
    app_name: str, queues: Mapping[str, int | None], *,
    concurrency: int, grace_s: float, name: str, address: str | None, transport: str | None, ops_host: str,
    ops_port: int | None, log_tracebacks: bool, log_level: str, log_json: bool,
) -> WorkerReport:  # fmt: skip
    """Works until it is stopped by a signal."""
    with logging_to_stderr(log_level, as_json=log_json):
        app = load_app(app_name)
        try:
            worker = Worker(
                app, queues, concurrency=concurrency, name=name, grace=grace_s, address=address, transport=transport,
                tls=connecting.given_tls(),
                ops_host=ops_host, ops_port=ops_port, log_tracebacks=log_tracebacks,
            )  # fmt: skip
        except InvalidArgument as error:  # an option, which the library checks
            raise usage(error.message) from error
        except HoldfastError:
            raise  # e.g. an address that is none, which is a ValueError too
        except ValueError as error:  # e.g. an app without tasks
            raise usage(str(error)) from error
        unused = sorted(set(worker.queues) - {task.queue for task in app.tasks.values()})
        if unused:
            log.warning("No task of this app is enqueued into %s by default: is that a typo?", ", ".join(unused))
        if not log_json:
            _print_banner(app_name, app, worker, grace_s)
        return worker.run()


def _print_banner(app_name: str, app: Holdfast, worker: Worker, grace_s: float) -> None:
    queues = (q if limit is None else f"{q} (at most {limit})" for q, limit in worker.queues.items())
    rows = [
        ("server", worker.address),
        ("queues", ", ".join(queues)),
        ("concurrency", str(worker.concurrency)),
        ("tasks", ", ".join(sorted(app.tasks))),
        ("name", worker.name),
        ("stop", f"Ctrl-C: running tasks have {grace_s:g} s to finish; once more: now"),
    ]
    output.print_banner(f"Holdfast worker of {app_name}", rows)
