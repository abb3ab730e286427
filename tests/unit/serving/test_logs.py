"""Logs: parseable, filtered, and never with what a task carries."""

import io
import json
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog

from holdfast.serving.logs import REDACTED, LogFormat, get_logger, setup_logs


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    yield
    root.handlers[:], level = before
    root.setLevel(level)
    structlog.reset_defaults()


def logged(level: str = "info", **values: Any) -> dict[str, Any]:
    out = io.StringIO()
    setup_logs(level, "json", out)
    get_logger("test").info("it happened", **values)
    record: dict[str, Any] = json.loads(out.getvalue())
    return record


def test_a_json_line_has_time_level_logger_and_values() -> None:
    record = logged(shard=3, path=Path("/x"), error=ValueError("bad"))
    assert record.pop("timestamp").endswith("Z")
    assert record == {
        "event": "it happened", "level": "info", "logger": "holdfast.test", "shard": 3, "path": "/x",
        "error": "ValueError: bad",
    }  # fmt: skip


@dataclass
class _Task:
    payload: bytes = b"SECRET"


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize(
    "values",
    [
        {"payload": "SECRET"},
        {"task_payload": "SECRET"},
        {"Result": "SECRET", "TOKEN": "SECRET", "traceback": "SECRET"},
        {"claim-token": "SECRET", "headers": {"a": "SECRET"}},
        {"task": {"payload": "SECRET", "deep": [{"tokens": ["SECRET"]}]}},
        {"data": b"SECRET", "more": [bytearray(b"SECRET"), memoryview(b"SECRET")]},
        {"task": _Task(), "tasks": [_Task()]},
        {"a": {"b": {"c": {"d": {"e": {"f": "SECRET"}}}}}},
    ],
)
def test_what_a_task_carries_never_reaches_the_output(log_format: LogFormat, values: dict[str, object]) -> None:
    out = io.StringIO()
    setup_logs("debug", log_format, out)
    get_logger(__name__).bind(**values).warning("it happened", **values)
    assert "it happened" in out.getvalue()
    assert "SECRET" not in out.getvalue()


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_of_ours_shows_no_local_variables(log_format: LogFormat) -> None:
    out = io.StringIO()
    setup_logs("info", log_format, out)

    def apply(payload: str) -> None:
        raise RuntimeError(f"failed after {len(payload)} characters")

    try:
        apply("".join(["SEC", "RET"]))
    except RuntimeError:
        get_logger("test").exception("apply failed")
    assert "failed after 6 characters" in out.getvalue()
    assert "SECRET" not in out.getvalue()


def test_sizes_and_counts_are_shown() -> None:
    record = logged(payload_bytes=7, tokens_used=2, payload=b"x")
    assert (record["payload_bytes"], record["tokens_used"], record["payload"]) == (7, 2, REDACTED)


def test_levels_filter() -> None:
    out = io.StringIO()
    setup_logs("warning", "json", out)
    log = get_logger("test")
    log.info("quiet")
    log.warning("loud")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["loud"]


def test_auto_is_console_on_a_terminal_only() -> None:
    terminal, pipe = _Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        setup_logs("info", "auto", stream)
        get_logger("test").info("hello", shard=1)
    assert json.loads(pipe.getvalue())["shard"] == 1
    with pytest.raises(json.JSONDecodeError):
        json.loads(terminal.getvalue())


def test_libraries_are_routed_from_warnings_upwards() -> None:
    out = io.StringIO()
    setup_logs("debug", "json", out)
    for name in ("uvicorn.access", "uvicorn.error", "grpc._cython.cygrpc", "asyncio"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble in %s", name)
    records = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {record["event"] for record in records} == {
        "trouble in uvicorn.access",
        "trouble in uvicorn.error",
        "trouble in grpc._cython.cygrpc",
        "trouble in asyncio",
    }


def test_a_logger_made_before_the_set_up_follows_it() -> None:
    log = get_logger("early")
    out = io.StringIO()
    setup_logs("info", "json", out)
    log.info("hello")
    assert json.loads(out.getvalue())["logger"] == "holdfast.early"
