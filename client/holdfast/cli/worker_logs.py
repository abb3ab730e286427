"""What a worker writes on standard error: a line per event, for people or as JSON. Never what a task is about."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from holdfast.cli.output import printable
from holdfast.client import TaskLogFilter

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("console", "json")

_OURS = "holdfast"
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
# The worker does not log them; this is the backstop for when somebody does.
_SECRET_WORDS = frozenset({"payload", "result", "token", "headers", "args", "kwargs"})


@contextmanager
def logging_to_stderr(level: str, *, as_json: bool) -> Iterator[None]:
    """Also for what the handlers of the application log: their information is wanted, their debugging is not. Such
    lines say which task they are about."""
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(TaskLogFilter())
    handler.setFormatter(_JsonLines() if as_json else _Lines())
    root, ours = logging.getLogger(), logging.getLogger(_OURS)
    before = root.level, ours.level
    number = logging.getLevelNamesMapping()[level.upper()]
    root.addHandler(handler)
    root.setLevel(max(number, logging.INFO))
    ours.setLevel(number)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(before[0])
        ours.setLevel(before[1])


class _Lines(logging.Formatter):
    """12:34:56 warning  what happened; of the application: its logger, and the task in whose handler it happened"""

    def format(self, record: logging.LogRecord) -> str:
        created = datetime.fromtimestamp(record.created)
        text = record.getMessage()
        if record.name.partition(".")[0] != _OURS:
            task_id = getattr(record, "task_id", "")
            task = f" [{getattr(record, 'task_type', 'task')} {task_id}]" if task_id else ""
            text = f"{record.name}: {text}{task}"
        text = "\n".join(part for part in (text, _exception(self, record)) if part)
        return printable(f"{created:%H:%M:%S} {record.levelname.lower():<7}  {text}")


class _JsonLines(logging.Formatter):
    """The keys that the server's log lines have, and those of the record."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for key, value in vars(record).items():
            if key not in _STANDARD_FIELDS and key not in line and key.rpartition("_")[2] not in _SECRET_WORDS:
                line[key] = value if isinstance(value, str | int | float | None) else f"<{type(value).__name__}>"
        if exception := _exception(self, record):
            line["exception"] = exception
        return json.dumps(line)


def _exception(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback. That of a failed attempt comes as text: its exception stays with the handler's thread."""
    return record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
