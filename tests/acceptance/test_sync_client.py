"""The blocking client in whole programs: it works, it ends when they end, and it survives a fork."""

import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.client import Client, NewTask, NotDead, ResultTimeout, TaskState
from tests.integration.server import ServerProcess

END_S_MAX = 15.0  # far less than the calls under way would last

BEGIN = """
import os, signal, sys, threading, time
from holdfast.client import Client, ClientForked, HoldfastError, NewTask
address = sys.argv[1]
client = Client(address)
def call(client=client): client.list_queues()
"""

# A child that hangs is killed by its alarm, and then has another exit code.
FORK = """
def in_child(use):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    signal.alarm(20)
    try:
        use()
    except ClientForked as error:
        print(error, flush=True)
        sys.exit(9)
    sys.exit(0)

def use_new():
    with Client(address) as new:
        call(new)
"""


Run = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(shared_server: ServerProcess) -> Run:
    """Runs a program to its end, which has a client of the server."""

    def program(text: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-W", "always", "-c", BEGIN + textwrap.dedent(text), shared_server.address]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    return program


@pytest.fixture
def run_forking(run: Run) -> Run:
    return lambda text: run(FORK + textwrap.dedent(text))


def test_a_task_from_beginning_to_end(shared_server: ServerProcess, queue: str) -> None:
    with Client(shared_server.address) as client:
        accepted = client.enqueue(NewTask(queue, "ship", b"17"))
        with pytest.raises(ResultTimeout):
            client.wait_task(accepted.task_id, timeout_s=0.05)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(client.wait_task, accepted.task_id, timeout_s=30)
            [claimed] = client.reserve([queue], wait_ms=5_000)
            client.extend(claimed, 60_000)
            client.ack(claimed, result=b"shipped")
            assert waiting.result(30).result == b"shipped"
        assert client.get_task(accepted.task_id).state is TaskState.SUCCEEDED
        assert queue in [stats.queue for stats in client.list_queues().queues]
        with pytest.raises(NotDead):
            client.get_dead_letter(accepted.task_id)


PROGRAMS = {
    "idle": "call()",
    "unused": "",
    "after an error": """
        try:
            client.get_task("nonsense")
        except HoldfastError as error:
            kept = error
    """,
    "daemons in calls": """
        call()
        names = {f"{os.getpid()}-{number}" for number in range(3)}
        for name in names:
            poll = lambda name=name: client.reserve(["none"], wait_ms=30_000, worker=name)
            threading.Thread(target=poll, daemon=True).start()
        while not names <= {one.worker for one in client.list_workers(page_size=1000).workers if one.is_waiting}:
            time.sleep(0.001)
    """,
    "a thread at work": """
        def work():
            for _ in range(20):
                call()
        threading.Thread(target=work).start()
    """,
    "no server": """
        client = Client("127.0.0.1:1")
        threading.Thread(target=call, args=(client,), daemon=True).start()
        while threading.active_count() < 3:  # the caller, and the client's own
            time.sleep(0.001)
    """,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=list(PROGRAMS))
def test_a_program_that_never_closes_its_client_ends_promptly_and_silently(run: Run, program: str) -> None:
    # How the end goes depends on which thread is where: once is not enough.
    for _ in range(3):
        done = run(textwrap.dedent(program) + "\nprint(time.monotonic())")
        assert (done.returncode, done.stderr) == (0, "")
        assert time.monotonic() - float(done.stdout) < END_S_MAX


def test_ctrl_c_ends_a_program_in_a_call(run: Run) -> None:
    done = run("""
        def is_waiting():
            # Python does not notice a signal that comes between its last look for one and the wait, until that is over.
            with open(f"/proc/self/task/{os.getpid()}/stat") as stat:
                sleeps = stat.read().rpartition(")")[2].split()[0] == "S"
            return sleeps and sys._current_frames()[threading.main_thread().ident].f_code.co_name == "wait"
        def interrupt():
            looks = 0
            while looks < 5:
                looks = looks + 1 if is_waiting() else 0
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            client.reserve(["none"], wait_ms=50_000)
        except KeyboardInterrupt:
            print("interrupted")
        """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


# Calls of this thread alone, until they are made by it: they go to the loop until frames are found.
OWN = """
from holdfast.client._loop_thread import LoopThread
run = LoopThread.run
def use_own_connection():
    handed = [1]
    while handed:
        handed.clear()
        LoopThread.run = lambda self, call: (handed.append(call), run(self, call))[1]
        enqueue()
        time.sleep(0.01)
def enqueue():
    client.enqueue(NewTask("forked", "t"))
"""


def test_ctrl_c_ends_a_call_that_the_thread_made_itself(run: Run) -> None:
    done = run(
        textwrap.dedent(OWN)
        + textwrap.dedent("""
        use_own_connection()
        def is_waiting():
            with open(f"/proc/self/task/{os.getpid()}/stat") as stat:
                sleeps = stat.read().rpartition(")")[2].split()[0] == "S"
            frame = sys._current_frames()[threading.main_thread().ident]
            return sleeps and frame.f_code.co_name == "_receive"
        def interrupt():
            looks = 0
            while looks < 5:
                looks = looks + 1 if is_waiting() else 0
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGINT)
        threading.Thread(target=interrupt).start()
        try:
            client.reserve(["none"], wait_ms=50_000)
        except KeyboardInterrupt:
            print("interrupted")
        enqueue()
        """)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_connection_of_a_thread_stays_with_the_parent_of_a_fork(run_forking: Run) -> None:
    """Also with a call under way over it, in another thread."""
    done = run_forking(
        textwrap.dedent(OWN)
        + textwrap.dedent("""
        use_own_connection()
        found = []
        thread = threading.Thread(target=lambda: found.extend(client.reserve(["forked-wait"], wait_ms=50_000)))
        thread.start()
        while not any("_receive" == frame.f_code.co_name for frame in sys._current_frames().values()):
            time.sleep(0.001)
        code = in_child(lambda: client.close())
        with Client(address) as other:
            other.enqueue(NewTask("forked-wait", "t"))
        thread.join()
        print(code, len(found))
        """)
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n", "")


def test_a_client_works_on_both_sides_of_a_fork(run_forking: Run) -> None:
    done = run_forking("""
for _ in range(5):
    call()
    print(in_child(call), in_child(use_new))
call()
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0\n" * 5, "")


def test_a_client_works_in_a_child_of_a_busy_program(run_forking: Run) -> None:
    """The fork waits for short calls; those that begin meanwhile wait for the fork."""
    done = run_forking("""
over = threading.Event()
def work():
    while not over.is_set():
        call()
threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
print([in_child(call) for _ in range(5)])
over.set()
for thread in threads:
    thread.join()
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 0, 0, 0, 0]\n", "")


@pytest.mark.parametrize("use", ["call", "use_new"], ids=["inherited", "new"])
def test_a_child_of_a_program_in_a_long_poll_gets_an_error_instead_of_silence(run_forking: Run, use: str) -> None:
    done = run_forking(f"""
polled = []
def poll():
    polled.append(client.reserve(["polled-{use}"], wait_ms=50_000))
thread = threading.Thread(target=poll)
thread.start()
call()  # goes the same way after it, so the poll is under way when this is answered
code = in_child({use})
client.enqueue(NewTask("polled-{use}", "t"))
thread.join()
call()
print(code, len(polled[0]))
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"No client works in a process that was forked .*\n9 1\n", done.stdout), done.stdout


def test_an_async_client_in_such_a_child_gets_the_error_too(run_forking: Run) -> None:
    done = run_forking("""
import asyncio
from holdfast.client import AsyncClient
async def list_queues():
    async with AsyncClient(address) as new:
        await new.list_queues()
thread = threading.Thread(target=lambda: client.reserve(["polled-async"], wait_ms=50_000))
thread.start()
call()
code = in_child(lambda: asyncio.run(list_queues()))
client.enqueue(NewTask("polled-async", "t"))
thread.join()
print(code)
""")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("\n9\n"), done.stdout
