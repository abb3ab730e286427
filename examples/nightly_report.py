"""A nightly report: a task that waits for its time. However often it is planned, there is one report per night.

In this directory, with a server running (`make run`):

    holdfast worker nightly_report:app
    python nightly_report.py                                    plans the report of the next 02:00
    python nightly_report.py --at 17:30 --zone Europe/Madrid    another time, another place

Run it twice: the second run finds the task of the first, because both give it the same request id. So it may stand in a
crontab, in a deployment script and in the start of the application at the same time. The report plans its own successor
before it ends; the request id makes that safe to repeat, too.
"""

import argparse
import os
import sys
from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from holdfast.client import Handle, Holdfast

REPORT_DIR = Path(os.environ.get("REPORT_DIR", "."))

app = Holdfast()


@app.task(queue="reports")
def make_report(day: str, at: str, zone: str) -> str:
    path = REPORT_DIR / f"report-{day}.txt"
    # Written beside and moved: whoever reads it finds a whole report or none, also if this runs twice.
    unfinished = path.with_suffix(".part")
    unfinished.write_text(f"Report of {day}, made at {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n")
    unfinished.replace(path)
    print(f"wrote {path}", flush=True)
    successor = plan(datetime.now(UTC), time.fromisoformat(at), zone)
    print(f"the next one is task {successor.id}", flush=True)
    return str(path)


def next_run(now: datetime, at: time, zone: str) -> datetime:
    """The next moment at which clocks in the zone show `at`.

    In the night when clocks are put forward 02:00 does not exist, and 03:00 is meant; when they are put back there are
    two, and the first is meant.
    """
    local = now.astimezone(ZoneInfo(zone))
    run_at = datetime.combine(local.date(), at, ZoneInfo(zone))
    if run_at.astimezone(UTC) <= now.astimezone(UTC):
        run_at = datetime.combine(local.date() + timedelta(days=1), at, ZoneInfo(zone))
    return run_at


def plan(now: datetime, at: time, zone: str) -> Handle[str]:
    run_at = next_run(now, at, zone)
    day = run_at.date().isoformat()
    task = make_report.options(run_at=run_at, request_id=f"report-{day}-{at}-{zone}")
    return task.enqueue(day, at.isoformat(), zone)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plans the next nightly report.")
    parser.add_argument("--at", type=time.fromisoformat, default=time(2, 0), help="when (02:00)")
    parser.add_argument("--zone", default="Europe/Berlin", help="whose clock (Europe/Berlin)")
    options = parser.parse_args()
    now = datetime.now(UTC)
    handle = plan(now, options.at, options.zone)
    what = "was planned before" if handle.duplicate else "is planned"
    print(f"the report of {next_run(now, options.at, options.zone):%Y-%m-%d %H:%M:%S %Z} {what}: task {handle.id}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
