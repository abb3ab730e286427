"""Who asks a worker to stop, and how quickly."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.client.worker.stopping import StopRequest

SIGNAL, FROM_AFAR = StopRequest.request, StopRequest.request_from_afar


async def is_set(wait: Callable[[], object]) -> bool:
    try:
        async with asyncio.timeout(0.05):
            await wait()  # type: ignore[misc]
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("asked", "warm", "quick"),
    [
        ([], False, False),
        ([SIGNAL], True, False),
        ([SIGNAL, SIGNAL], True, True),
        ([FROM_AFAR], True, False),
        ([FROM_AFAR, FROM_AFAR], True, False),
        ([FROM_AFAR, SIGNAL], True, False),
        ([FROM_AFAR, SIGNAL, SIGNAL], True, True),
    ],
)
@pytest.mark.parametrize("before", [False, True], ids=["after the start", "before the start"])
async def test_a_second_signal_is_quick_and_an_operator_from_afar_is_not(
    asked: list[Callable[[StopRequest], None]], warm: bool, quick: bool, before: bool
) -> None:
    stop = StopRequest()
    if not before:
        stop.attach(asyncio.get_running_loop())
    for ask in asked:
        ask(stop)
    if before:
        stop.attach(asyncio.get_running_loop())
    assert (await is_set(stop.warm), await is_set(stop.quick)) == (warm, quick)
