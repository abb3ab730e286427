"""The limit on open files is raised as far as it may be, and never lowered."""

import resource
from collections.abc import Iterator

import pytest

from holdfast.broker.open_files import OPEN_FILES_WANTED, allow_many_files


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_a_low_limit_is_raised_to_what_is_wanted_or_allowed() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    allowed = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    assert allow_many_files() == allowed
    assert soft_limit() == allowed


def test_a_limit_that_is_high_enough_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.broker.open_files.OPEN_FILES_WANTED", 512)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    assert allow_many_files() == 1024
    assert soft_limit() == 1024


def test_a_system_that_refuses_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))

    def refuse(_which: int, _limits: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    with monkeypatch.context() as refusing:
        refusing.setattr(resource, "setrlimit", refuse)
        assert allow_many_files() == 1024
