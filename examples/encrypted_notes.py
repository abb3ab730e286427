"""Payloads that only producers and workers can read: the servers, their disks and backups have nothing but noise.

In this directory, with a server running (`make run`), and with `pip install cryptography`:

    export NOTES_KEYS="2026-11:$(openssl rand -hex 32)"
    holdfast worker encrypted_notes:app
    python encrypted_notes.py "Ada has a cold"

Another key is taken into use in two steps, so that no worker ever meets a task that it cannot read: first all processes
get it behind the old one, then all get it as the first. The old one goes once no task of it is left.

    export NOTES_KEYS="2026-11:…,2027-01:$(openssl rand -hex 32)"
    export NOTES_KEYS="2027-01:…,2026-11:…"
"""

import os
import sys

from holdfast.client import Codec, Holdfast

PAIRS = [pair.split(":") for pair in os.environ["NOTES_KEYS"].split(",")]
KEYS = {name: bytes.fromhex(digits) for name, digits in PAIRS}

app = Holdfast(codec=Codec(keys=KEYS, key_id=PAIRS[0][0], errors=True))


@app.task(queue="notes", max_attempts=3)
def note(text: str) -> str:
    return f"noted {len(text)} characters: {text}"


def main() -> int:
    handle = note.enqueue(sys.argv[1])
    print(f"task {handle.id}", flush=True)
    print(handle.result(timeout=60))
    return 0


if __name__ == "__main__":
    sys.exit(main())
