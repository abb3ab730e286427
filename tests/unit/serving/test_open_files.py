"""The limit on open files is raised as far as it may be, and never lowered."""

import resource
from collections.abc import Iterator

import pytest

from holdfast.serving.open_files import OPEN_FILES_WANTED, allow_many_files, connections_allowed, files_per_state


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
    monkeypatch.setattr("holdfast.serving.open_files.OPEN_FILES_WANTED", 512)
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


@pytest.mark.parametrize("open_files", [256, 1024, 4096, 20_000, 65_536])
def test_connections_leave_descriptors_for_what_is_on_disk(open_files: int) -> None:
    connections = connections_allowed(16_384, open_files, with_states=True)
    assert connections >= 32
    assert connections <= max(32, open_files // 2)
    assert connections_allowed(100, open_files, with_states=False) <= 100
    for states in (1, 16, 64):
        files = files_per_state(states, open_files)
        assert 32 <= files <= 512
        assert files == 32 or connections + states * files <= open_files


def test_a_router_uses_what_a_broker_keeps_for_its_states() -> None:
    assert connections_allowed(16_384, 20_000, with_states=False) == 16_384
    assert connections_allowed(16_384, 20_000, with_states=True) == 9872
    assert connections_allowed(16_384, 20_000, with_states=True, ports=2) == 4936
