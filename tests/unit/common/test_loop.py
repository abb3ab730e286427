"""Servers run on uvloop, and on asyncio's own loop where there is none."""

import asyncio

import pytest
import uvloop

from holdfast.common import loop as loop_module
from holdfast.common.loop import new_event_loop, run


async def kind_of_loop() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_the_loop_is_uvloop_where_it_is_installed() -> None:
    assert run(kind_of_loop()) is uvloop.Loop
    loop = new_event_loop()
    assert loop.run_until_complete(kind_of_loop()) is uvloop.Loop
    loop.close()


def test_without_uvloop_it_is_the_one_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module, "uvloop", None)
    assert issubclass(run(kind_of_loop()), asyncio.SelectorEventLoop)
