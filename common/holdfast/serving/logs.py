"""Structured logs on standard error: JSON for machines, columns for people. The only file that knows structlog.

Task contents never belong into a log. Callers do not put them there; `_redact` is the backstop for when one does.
"""

import logging
import sys
from enum import Enum
from pathlib import PurePath
from typing import Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

LogFormat = Literal["auto", "json", "console"]
Logger = FilteringBoundLogger

REDACTED = "[redacted]"

_OURS = "holdfast"
# Libraries that speak through the standard logging module: heard from a warning upwards only, because their
# information lines (one per HTTP request, one per channel) drown ours.
_FOREIGN_LEVEL = logging.WARNING
# Replaced wherever they are a key or its last word: `payload`, `task_payload`, but not `payload_bytes`.
_SECRET_WORDS = frozenset({
    "payload", "payloads", "result", "results", "token", "tokens", "header", "headers", "traceback", "tracebacks",
    "authorization", "credential", "credentials", "password", "secret", "secrets",
})  # fmt: skip
_NESTING_MAX = 4


def setup_logs(level: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Configure logging for the whole process; a second call replaces the first."""
    stream = sys.stderr if stream is None else stream
    is_console = log_format == "console" or (log_format == "auto" and stream.isatty())
    level_number = logging.getLevelNamesMapping()[level.upper()]
    first: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*first, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level_number),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,  # so that loggers made at import time follow a later set-up
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=first,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                _redact,
                _renderer(is_console, stream),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(max(level_number, _FOREIGN_LEVEL))
    logging.getLogger(_OURS).setLevel(level_number)
    # An HTTP server that ran in this process before has cut its access log off.
    logging.getLogger("uvicorn.access").propagate = True


def get_logger(name: str) -> Logger:
    """A logger for one module: `get_logger(__name__)`. Events are short sentences, everything else is keywords."""
    full_name = name if name.partition(".")[0] == _OURS else f"{_OURS}.{name}"
    return cast(Logger, structlog.get_logger(full_name))


def _renderer(is_console: bool, stream: TextIO) -> Processor:
    if not is_console:
        return structlog.processors.JSONRenderer()
    # The default traceback formatter prints local variables, payloads among them.
    return structlog.dev.ConsoleRenderer(
        colors=stream.isatty(), exception_formatter=structlog.dev.plain_traceback, pad_event_to=0
    )


def _redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    return {key: _shown(key, value, 0) for key, value in event.items()}


def _shown(key: str, value: object, depth: int) -> object:
    """Plain values as they are; contents of tasks, raw bytes and objects that may hold either, never."""
    if key.lower().replace("-", "_").rpartition("_")[2] in _SECRET_WORDS:
        return REDACTED
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    if depth < _NESTING_MAX and isinstance(value, dict):
        return {str(inner): _shown(str(inner), item, depth + 1) for inner, item in value.items()}
    if depth < _NESTING_MAX and isinstance(value, list | tuple | set | frozenset):
        return [_shown("", item, depth + 1) for item in value]
    return f"<{type(value).__name__}>"
