"""RocksDB is the overlay of a state: what is in its memory dies with the process, and the log has it."""

import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.machine.entries import Claim, Enqueue, Entry, LeaderStarted
from holdfast.machine.kv import MemoryKV, state_hash
from holdfast.machine.machine import Machine
from holdfast.machine.outcomes import AcceptedRun, Claimed
from holdfast.machine.run_entries import AckRange, AckRanges, EnqueueRuns
from holdfast.storage.rocksdb import RocksState
from tests.integration import dying_state
from tests.integration.dying_state import COMMIT_ENTRIES, ENDED, FLUSH_ENTRIES, WHENS, replay, write_log
from tests.unit.machine.machine_shard import KEEP_MS, LEASE_MS, START_MS, new_run, new_task

ENTRIES = 400


def history(rng: random.Random) -> Iterator[Entry]:
    """What a leader wrote: tasks come in runs and by themselves, some of them are claimed, most of those are acked."""
    machine, index = Machine(MemoryKV()), 0

    def decided(entry: Entry) -> Iterator[Entry]:
        nonlocal index
        index += 1
        outcomes[:] = machine.apply(index, 1, entry)
        machine.commit()
        yield entry

    outcomes: list[object] = []
    yield from decided(LeaderStarted(START_MS, stepped=False))
    while index < ENTRIES:
        if rng.random() < 0.3:
            yield from decided(Enqueue(START_MS, [new_task(request_id=b"%d-%d" % (index, n)) for n in range(5)]))
            continue
        tasks = rng.randrange(2, 100)
        yield from decided(EnqueueRuns(START_MS, [new_run(tasks, size_bytes=rng.randrange(1000))]))
        (accepted,) = outcomes
        assert isinstance(accepted, AcceptedRun)
        times = START_MS, START_MS + LEASE_MS, b"worker", b"", START_MS + KEEP_MS
        count = rng.randrange(1, tasks + 1)
        yield from decided(Claim(*times, [accepted.task_id], [], secret=1, counts=[count]))
        (claimed,) = outcomes
        assert isinstance(claimed, Claimed)
        acked = rng.randrange(1, count + 1)
        yield from decided(AckRanges(START_MS, KEEP_MS, [AckRange(claimed.task_id, claimed.token, acked)]))


@pytest.mark.parametrize("when", WHENS)
@pytest.mark.parametrize("seed", range(3))
def test_a_state_that_was_killed_is_one_moment_and_the_log_has_the_rest(tmp_path: Path, seed: int, when: str) -> None:
    rng = random.Random(seed)
    entries = list(history(rng))
    last_entry = rng.randrange(FLUSH_ENTRIES, len(entries))
    write_log(tmp_path / "log", entries)
    command = [sys.executable, dying_state.__file__, str(tmp_path / "state"), str(tmp_path / "log")]
    done = subprocess.run([*command, str(last_entry), when], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    durable = [int(line) for line in done.stdout.split()]
    assert durable, "it was flushed before it died"

    written = last_entry // COMMIT_ENTRIES * COMMIT_ENTRIES
    state, twin = RocksState(tmp_path / "state"), MemoryKV()
    had = Machine(state).meta.applied_index
    assert (written if when == ENDED else durable[-1]) <= had <= written, "what was flushed is there"
    assert had % COMMIT_ENTRIES == 0, "nothing of a batch, or all of it"
    replay(twin, entries[:had])
    assert state_hash(state) == state_hash(twin), "as it was then, and nothing of later"
    assert replay(state, entries) == had
    replay(twin, entries)
    assert state_hash(state) == state_hash(twin)
    state.close()
