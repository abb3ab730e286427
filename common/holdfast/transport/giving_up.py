"""Ending a call before its time, and hearing what is known of it then."""

import asyncio

from holdfast.routing.silence import Cancellable


class Patience:
    """Of whoever made a call. This one has no end but the call's own."""

    is_over = False

    def began(self, call: Cancellable) -> None:
        """An attempt."""

    def ended(self) -> None:
        """The attempt."""

    async def pause(self, seconds: float) -> None:
        """Between two attempts."""
        await asyncio.sleep(seconds)


ENDLESS = Patience()


class GivingUp(Patience):
    """Of somebody who may give a call up: it then ends with the error that says whether it may have taken effect. Of a
    call whose task was cancelled nobody could say that."""

    def __init__(self) -> None:
        self._call: Cancellable | None = None
        self._end = asyncio.Event()

    def give_up(self) -> None:
        self.is_over = True
        self._end.set()
        if self._call is not None:
            self._call.cancel()

    def began(self, call: Cancellable) -> None:
        self._call = call
        if self.is_over:
            call.cancel()

    def ended(self) -> None:
        self._call = None

    async def pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._end.wait()
        except TimeoutError:
            pass
