"""What the calls of a client have in common, whatever they are about."""

from holdfast.client._coding import Coding
from holdfast.client._direct import Direct
from holdfast.client._options import call_limit_s
from holdfast.client._rpc import Connection, Method, RequestT, ResponseT
from holdfast.client.errors import UnexpectedAnswer


class Calls:
    """The way to the servers, and how long a call may take if it does not say."""

    _connection: Connection
    _calls: Connection | Direct
    _timeout_s: float
    _coding: Coding

    async def _call(
        self,
        method: Method[RequestT, ResponseT],
        request: RequestT,
        timeout_s: float | None,
        *,
        repeatable: bool,
        is_first: bool = False,
    ) -> ResponseT:
        timeout_s = call_limit_s(timeout_s, self._timeout_s)
        reply = await self._calls.call(method, request, timeout_s=timeout_s, repeatable=repeatable, is_first=is_first)
        return reply.message


def next_page(token: str, next_token: str, found: int) -> str:
    """Where to go on after a page with so many things on it. One that had none and is its own next one would have us
    turn in circles."""
    if token and next_token == token and not found:
        raise UnexpectedAnswer("a page that is its own next one")
    return next_token
