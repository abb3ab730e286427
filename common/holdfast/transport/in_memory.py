"""The network's twin in memory, for unit tests and simulation: servers that are functions, and its faults.

A call takes effect when its server is given it, whatever becomes of the answer and of whoever sent it. A server that is
silent takes calls and does not look at them until it is resumed: then it does, in the order in which they came.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from holdfast.transport.channels import CallFailedError, Metadata

# Of a server: the path of a call, its request and its metadata. Raises CallFailedError. What it does before it waits is
# done at once.
Serve = Callable[[str, bytes, Metadata], bytes | Awaitable[bytes]]


class MemoryNetwork:
    """Has the methods that routers and clients need of their channels."""

    def __init__(self, delay_s: Callable[[], float], loses_reply: Callable[[], bool]) -> None:
        """`delay_s`: of a request, or of an answer. `loses_reply`: whether the connection breaks before one arrives."""
        self._delay_s = delay_s
        self._loses_reply = loses_reply
        self._servers: dict[str, Serve] = {}
        self._silent: dict[str, list[MemoryCall]] = {}  # with the calls that they have got since
        self._gone: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def add(self, address: str, serve: Serve) -> None:
        self._servers[address] = serve

    def silence(self, address: str) -> None:
        self._silent.setdefault(address, [])

    def resume(self, address: str) -> None:
        for call in self._silent.pop(address, []):
            self._serve(call)

    def stop(self, address: str) -> None:
        """Nobody listens there."""
        self._gone.add(address)

    def start(self, address: str) -> None:
        self._gone.discard(address)

    def is_well(self, address: str) -> bool:
        """Neither silent nor gone."""
        return address not in self._silent and address not in self._gone

    # --- what callers see ---------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._servers)

    def call(self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float) -> "MemoryCall":
        call = MemoryCall(address, path, data, metadata or (), timeout_s)
        self._run(self._carry(call))
        return call

    def begin(
        self, address: str, path: str, data: bytes, metadata: Metadata | None, timeout_s: float,
        on_end: Callable[[bytes | CallFailedError], None],
    ) -> "MemoryCall":  # fmt: skip
        call = self.call(address, path, data, metadata, timeout_s)

        async def report() -> None:
            try:
                on_end(await call.answer())
            except CallFailedError as failure:
                on_end(failure.with_traceback(None))

        self._run(report())
        return call

    def frames_at(self, _address: str) -> None:
        """It has none."""

    def is_connected(self, address: str) -> bool:
        return address in self._servers and address not in self._gone

    async def connect(self, address: str, _timeout_s: float) -> bool:
        await asyncio.sleep(self._delay_s())
        return self.is_connected(address)

    async def keep(self, addresses: Collection[str]) -> None:
        """There is nothing to be closed."""

    async def close(self) -> None:
        """The servers stay, for others."""

    # --- on the way ---------------------------------------------------------------------------------------------

    def _run(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, call: "MemoryCall") -> None:
        await asyncio.sleep(self._delay_s())
        if not self.is_connected(call.address):
            call.fail(CallFailedError("UNAVAILABLE", "No connection could be made.", was_connected=False))
        elif call.address in self._silent:
            self._silent[call.address].append(call)
        else:
            self._serve(call)

    def _serve(self, call: "MemoryCall") -> None:
        try:
            answer = self._servers[call.address](call.path, call.data, call.metadata)
        except CallFailedError as failure:
            self._run(self._bring_back(call, failure))
        else:
            self._run(self._bring_back(call, answer))

    async def _bring_back(self, call: "MemoryCall", answer: bytes | Awaitable[bytes] | CallFailedError) -> None:
        if isinstance(answer, Awaitable):
            try:
                answer = await answer
            except CallFailedError as failure:
                answer = failure
        await asyncio.sleep(self._delay_s())
        if self._loses_reply() or call.address in self._gone:
            call.fail(CallFailedError("UNAVAILABLE", "The connection was lost."))
        elif isinstance(answer, CallFailedError):
            call.fail(answer)
        else:
            call.succeed(answer)


class MemoryCall:
    """A call under way."""

    is_unsent = False

    def __init__(self, address: str, path: str, data: bytes, metadata: Metadata, timeout_s: float) -> None:
        self.address = address
        self.path = path
        self.data = data
        self.metadata = metadata
        self._timeout_s = timeout_s
        self._reply: asyncio.Future[bytes | CallFailedError] = asyncio.get_running_loop().create_future()

    def succeed(self, answer: bytes) -> None:
        self._end(answer)

    def fail(self, failure: CallFailedError) -> None:
        self._end(failure)

    def cancel(self) -> None:
        self._end(CallFailedError("CANCELLED", "It was given up.", was_given_up=True))

    async def answer(self) -> bytes:
        try:
            async with asyncio.timeout(max(0.0, self._timeout_s)):
                reply = await asyncio.shield(self._reply)
        except TimeoutError:
            raise CallFailedError("DEADLINE_EXCEEDED", "There was no answer in time.") from None
        if isinstance(reply, CallFailedError):
            raise reply
        return reply

    def _end(self, reply: bytes | CallFailedError) -> None:
        if not self._reply.done():
            self._reply.set_result(reply)
