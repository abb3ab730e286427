"""For all tests: a machine that is busy must not make one of them fail, what they start must start fast, and none is
heard in the logs of another."""

import gc
import logging
import os
import signal
import sys
from collections.abc import Generator, Iterator

import pytest
import structlog
from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")

# Tests start hundreds of servers and commands. Where bytecode is not kept, as in many containers, each of them would
# compile all that it imports, which takes longer than the rest of its start.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores SIGINT for what it runs in the background (`make test &`, `nohup make test`), and Python leaves it
# ignored, here and in every process that a test starts. Tests that press Ctrl-C would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is there once all tests are known stays to the end. To look for garbage in it again and again, while they
    are collected and during each of them, costs a tenth of all that they do."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def _logs_as_they_were() -> Iterator[None]:
    """Commands that are run in the process of a test set up the logs for all of it."""
    root = logging.getLogger()
    handlers, level, is_configured = root.handlers[:], root.level, structlog.is_configured()
    yield
    if structlog.is_configured() and not is_configured:
        structlog.reset_defaults()
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.getLogger("holdfast").setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def umask() -> Iterator[None]:
    """What begins a server closes its files to others for the whole process, and the next test has another umask."""
    before = os.umask(0o022)
    yield
    os.umask(before)
