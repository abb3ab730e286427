"""A payment that happens once, although its handler may run twice.

In this directory, with a server running (`make run`):

    holdfast worker effectively_once:app &
    holdfast worker effectively_once:app &
    python effectively_once.py

The worker that gets the task dies at the worst moment: the money is booked, but it cannot say so any more. Its lease
ends after two seconds, the other worker gets the task, and the handler runs again. The booking carries the task's
idempotency key, which is the same in every attempt, and the database takes each key once: the second run finds that
the work is done, and returns.

The key and the effect must be written together, here in one transaction. If the effect is elsewhere, at a payment
provider for example, give it the key: it has to refuse repeats itself.
"""

import os
import signal
import sqlite3
import sys
from contextlib import closing

from holdfast.client import Holdfast, current_task

DATABASE = os.environ.get("PAYMENTS_DB", "payments.db")
SCHEMA = """
    CREATE TABLE IF NOT EXISTS payments (key TEXT PRIMARY KEY, customer TEXT NOT NULL, cents INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS runs (key TEXT NOT NULL);
"""

app = Holdfast()


@app.task(queue="payments", lease=2.0)
def charge(customer: str, cents: int, crash: bool = False) -> str:
    key = current_task().idempotency_key
    with closing(open_database()) as database:
        with database:
            database.execute("INSERT INTO runs VALUES (?)", (key,))  # only to be able to tell the story
        try:
            with database:
                database.execute("INSERT INTO payments VALUES (?, ?, ?)", (key, customer, cents))
        except sqlite3.IntegrityError:
            print(f"{customer} has paid already: nothing to do", flush=True)
            return f"receipt {key}"
    print(f"{customer} pays {cents / 100:.2f}", flush=True)
    if crash:
        print("this worker dies before it can report it", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return f"receipt {key}"


def open_database() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE, timeout=10)
    database.executescript(SCHEMA)
    return database


def main() -> int:
    handle = charge.enqueue("ada", 1999, crash=True)
    print(f"accepted as task {handle.id}", flush=True)
    receipt = handle.result(timeout=60)
    with closing(open_database()) as database:
        [runs] = database.execute("SELECT count(*) FROM runs WHERE key = ?", (handle.id,)).fetchone()
        [payments] = database.execute("SELECT count(*) FROM payments WHERE key = ?", (handle.id,)).fetchone()
    print(f"{receipt}: the handler ran {runs} times, the customer paid {payments} time")
    return 0 if payments == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
