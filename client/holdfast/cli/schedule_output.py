"""What the commands about schedules print, for people and for programs. Keys are an interface, as in records.py."""

from collections.abc import Sequence
from datetime import UTC, tzinfo

from holdfast.cli import output, records, times
from holdfast.cli.options import word
from holdfast.cli.schedule_calls import Times
from holdfast.client import NewTask, ScheduleInfo


def _zone(name: str) -> tzinfo:
    """UTC where this machine does not know the zone: the offset is always shown, so nobody is misled."""
    return times.zone_of(name) or UTC


def print_schedules(schedules: Sequence[ScheduleInfo]) -> None:
    rows = [
        (
            info.queue,
            info.name,
            info.schedule.expression,
            info.schedule.time_zone or "UTC",
            "paused" if info.paused else times.shown_local(info.next_at_ms, _zone(info.schedule.time_zone)),
            f"{info.fired_total:,}",
            f"{info.skipped_total:,}",
        )
        for info in schedules
    ]
    names = ("queue", "schedule", "when", "zone", "next", "made", "skipped")
    output.show([output.table(names, rows, left=5)])


def shown_next(info: ScheduleInfo) -> str:
    zone = _zone(info.schedule.time_zone)
    return times.shown_local(info.next_at_ms, zone) if info.next_at_ms else "never again"


def schedule_rows(info: ScheduleInfo) -> list[tuple[str, str]]:
    schedule, task = info.schedule, info.schedule.task
    zone = _zone(schedule.time_zone)
    rows = [
        ("schedule", info.name),
        ("queue", info.queue),
        ("when", schedule.expression),
        ("zone", schedule.time_zone or "UTC"),
        ("state", "paused" if info.paused else "on"),
        ("next", "-" if info.paused else shown_next(info)),
        ("last", times.shown_local(info.last_at_ms, zone)),
        ("last task", info.last_task_id or "-"),
        ("made", f"{info.fired_total:,} tasks, {info.skipped_total:,} ticks skipped"),
        ("catch-up", word(schedule.catch_up)),
        ("overlap", word(schedule.overlap)),
        ("type", task.type),
    ]
    return rows + [(label, value) for label, value in _task_rows(task) if value]


def _task_rows(task: NewTask) -> list[tuple[str, str]]:
    def shown_ms(value_ms: int | None) -> str:
        return times.shown_duration(value_ms) if value_ms else ""

    unique = f"{task.unique_key} ({word(task.unique_scope)})" if task.unique_key else ""
    return [
        ("priority", "" if task.priority is None else str(task.priority)),
        ("tenant", task.tenant),
        ("limit key", task.limit_key),
        ("unique key", unique),
        ("max attempts", str(task.max_attempts or "")),
        ("max claims", str(task.max_claims or "")),
        ("retries", output.shown_retry(task.retry) if task.retry else ""),
        ("time for an attempt", shown_ms(task.timeout_ms)),
        ("ttl", shown_ms(task.ttl_ms)),
        ("payload", output.shown_bytes(task.payload) if task.payload else ""),
    ]


def schedule_json(info: ScheduleInfo, *, with_payload: bool = True) -> dict[str, object]:
    schedule, task = info.schedule, info.schedule.task
    values: dict[str, object] = {
        "queue": info.queue,
        "name": info.name,
        "expression": schedule.expression,
        "time_zone": schedule.time_zone or "UTC",
        "catch_up": word(schedule.catch_up),
        "overlap": word(schedule.overlap),
        "paused": info.paused,
        "next_at_ms": info.next_at_ms,
        "last_at_ms": info.last_at_ms,
        "last_task_id": info.last_task_id or None,
        "fired_total": info.fired_total,
        "skipped_total": info.skipped_total,
        "version": info.version,
        "type": task.type,
        "priority": task.priority,
        "tenant": task.tenant,
        "limit_key": task.limit_key,
        "unique_key": task.unique_key,
        "unique_scope": word(task.unique_scope) if task.unique_key else None,
        "max_attempts": task.max_attempts,
        "max_claims": task.max_claims,
        "retry": records.retry_json(task.retry) if task.retry else None,
        "timeout_ms": task.timeout_ms,
        "ttl_ms": task.ttl_ms,
        "result_ttl_ms": task.result_ttl_ms,
    }
    return values | records.bytes_json("payload", task.payload) if with_payload else values


def print_times(found: Times, now_ms: int) -> None:
    zone = _zone(found.time_zone)
    if times.zone_of(found.time_zone) is None:
        output.print_note(f"This machine does not know the zone {found.time_zone}: times are in UTC.")
    rows = [(times.shown_local(at_ms, zone), f"in {times.shown_duration(at_ms - now_ms)}") for at_ms in found.at_ms]
    output.show([output.table((f"next ({found.time_zone or 'UTC'})", "from now"), rows)])


def times_json(found: Times) -> dict[str, object]:
    """`at` is in the zone, if this machine knows it, and always has its offset."""
    zone = _zone(found.time_zone)
    instants = [(at_ms, times.local_instant(at_ms, zone)) for at_ms in found.at_ms]
    return {
        "expression": found.expression,
        "time_zone": found.time_zone or "UTC",
        "paused": found.paused,
        "times": [{"at_ms": at_ms, "at": local.isoformat() if local else None} for at_ms, local in instants],
    }
