"""A cleanup by the clock: a schedule makes one task per tick, whoever is killed at that moment.

In this directory, with a server running (`make run`):

    holdfast worker scheduled_cleanup:app
    python scheduled_cleanup.py                                       every night at 03:15, by the clock in Berlin
    python scheduled_cleanup.py --when "@every 90s"                   or otherwise: the schedule is changed
    python scheduled_cleanup.py --now                                 and once now

Run it as often as you like, for instance whenever the application starts: there is one schedule of that name, and the
same once more changes nothing. If the cleanup of yesterday still runs, that of today is left out; after a night without
servers there is one, not one for each hour that was missed.
"""

import argparse
import os
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from holdfast.client import CatchUp, Holdfast, Overlap, Schedule, current_task

CLEAN_DIR = Path(os.environ.get("CLEAN_DIR", "scratch"))

app = Holdfast()


@app.task(queue="housekeeping", timeout=600, max_attempts=3)
def cleanup(older_than_days: int) -> int:
    """Bears repetition by nature: what is deleted is not there the second time."""
    tick_ms = current_task().headers.get("holdfast-tick-ms")
    limit_s = (int(tick_ms) / 1000 if tick_ms else time.time()) - older_than_days * 86_400
    old = [path for path in CLEAN_DIR.glob("*.tmp") if path.stat().st_mtime < limit_s]
    for path in old:
        path.unlink(missing_ok=True)
    print(f"deleted {len(old)} files", flush=True)
    return len(old)


def main() -> int:
    parser = argparse.ArgumentParser(description="Sets the schedule of the cleanup.")
    parser.add_argument("--when", default="15 3 * * *", help="cron, or @every 90s (15 3 * * *)")
    parser.add_argument("--zone", default="Europe/Berlin", help="whose clock (Europe/Berlin)")
    parser.add_argument("--now", action="store_true", help="clean up once now, too")
    options = parser.parse_args()
    schedule = Schedule(
        "cleanup",
        options.when,
        cleanup.call(older_than_days=7).new_task,
        time_zone=options.zone,
        catch_up=CatchUp.ONE,
        overlap=Overlap.SKIP,
    )
    app.run(lambda client: client.put_schedule(schedule))
    times_ms = app.run(lambda client: client.schedule_times(schedule.queue, schedule.name, count=3))
    for at_ms in times_ms:
        print(f"next: {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC")
    if options.now:
        accepted = app.run(lambda client: client.trigger_schedule(schedule.queue, schedule.name))
        print(f"deleted {app.handle(accepted.task_id).result(timeout=60)} files now")
    return 0


if __name__ == "__main__":
    sys.exit(main())
