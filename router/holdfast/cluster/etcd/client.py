"""The client of etcd: the only file of the cluster that knows gRPC.

It has a channel of its own to each endpoint and asks the one that answered last. When that one fails or falls silent,
the next one is asked, until the time for the call is over. Everything may be asked twice but a commit: that one is sent
again only if it is certain that it was not carried out (problems.py).

Whatever lasts, a watch or a lease, lives on through outages, with growing pauses between the attempts.
"""

import asyncio
import random
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from holdfast.cluster.etcd.api import (
    Changes,
    Committed,
    CommitUnknownError,
    CompactedError,
    Delete,
    EtcdError,
    EtcdRefusedError,
    EtcdUnavailableError,
    LeaseLostError,
    Put,
    Row,
    Snapshot,
    Unchanged,
)
from holdfast.cluster.etcd.messages import WatchReader, commit_request, page_request, range_of, row_of
from holdfast.cluster.etcd.problems import NO_ANSWER, Cause, EtcdProblem, judge
from holdfast.common.backoff import Backoff
from holdfast.common.certificates import CertificateError, PemFiles
from holdfast.proto.etcd import etcd_pb2 as pb
from holdfast.serving import reloading
from holdfast.serving.logs import get_logger
from holdfast.serving.reloading import Reloaded

_log = get_logger(__name__)

_READ_TRIES = 5  # of a whole read, whose revision may be compacted away between two pages
_ATTEMPT_S_MIN = 0.5
_BACKOFF = Backoff(first_s=0.05, max_s=0.3)  # within a call, whose time is short
_LONG_BACKOFF = Backoff(first_s=0.05, max_s=2.0)  # of what waits an outage out
_STEADY_S = 5.0  # a watch that lived that long was a good one: the next pause is short again
_CLOSED = "The client of etcd is closed."
_FILES = "an authority, a certificate and its key for etcd"

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    (
        "grpc.max_receive_message_length",
        -1,
    ),  # etcd has limits of its own, and a watch that catches up gets much at once
    ("grpc.max_send_message_length", -1),
    # A watch over a connection that died without a word must notice. etcd cuts who asks more often than every 5 s.
    ("grpc.keepalive_time_ms", 7_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the one that gRPC goes by; it is a minute if not set
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.http2.max_pings_without_data", 0),
    # The minimum is also the longest that an attempt to connect may take: then the next endpoint has its turn.
    # What is behind a name may have another address by now, as a pod that was replaced has: gRPC would look it up again
    # half a minute later.
    ("grpc.dns_min_time_between_resolutions_ms", 500),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Each client has its own connections; otherwise a new one inherits the pauses of an old one.
    ("grpc.use_local_subchannel_pool", 1),
    # etcd is inside the network: a proxy meant for the web must not swallow calls to it.
    ("grpc.enable_http_proxy", 0),
)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
T = TypeVar("T")
_Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class EtcdCredentials:
    """What was made of the files."""

    of_channels: grpc.ChannelCredentials
    expires_s: float


@dataclass(frozen=True, slots=True)
class EtcdTls:
    """Files in PEM. Without an authority, those count that gRPC knows; without a certificate, we show none."""

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None

    def credentials(self) -> EtcdCredentials:
        """Reads the files: not for the event loop."""
        files = PemFiles(self.authority, self.certificate, self.key)
        try:
            # gRPC finds out at the first handshake, and does not say what is wrong: so they are tried here.
            files.context(ssl.PROTOCOL_TLS_CLIENT, what=_FILES)
            pem = files.read(what=_FILES)
        except CertificateError as error:
            raise EtcdRefusedError(str(error)) from error
        return EtcdCredentials(
            grpc.ssl_channel_credentials(pem.authority, pem.key, pem.certificate), pem.expires_s
        )  # fmt: skip

    def reloaded(self) -> Reloaded[EtcdCredentials]:
        """The same, made anew when the files change."""
        paths = [self.authority, self.certificate, self.key]
        return Reloaded("etcd", paths, self.credentials, errors=EtcdRefusedError)


@dataclass(frozen=True, slots=True)
class _Method(Generic[RequestT, ResponseT]):
    path: str
    request: type[RequestT]
    response: type[ResponseT]


def _method(
    service: str, name: str, request: type[RequestT], response: type[ResponseT]
) -> _Method[RequestT, ResponseT]:
    """The method as etcd knows it; asking for one that is not in etcd.proto, or with other messages, fails."""
    found = pb.DESCRIPTOR.services_by_name[service].methods_by_name[name]
    assert found.input_type is request.DESCRIPTOR, f"{name} takes {found.input_type.name}"
    assert found.output_type is response.DESCRIPTOR, f"{name} returns {found.output_type.name}"
    return _Method(f"/etcdserverpb.{service}/{name}", request, response)


_RANGE = _method("KV", "Range", pb.RangeRequest, pb.RangeResponse)
_TXN = _method("KV", "Txn", pb.TxnRequest, pb.TxnResponse)
_WATCH = _method("Watch", "Watch", pb.WatchRequest, pb.WatchResponse)
_GRANT = _method("Lease", "LeaseGrant", pb.LeaseGrantRequest, pb.LeaseGrantResponse)
_REVOKE = _method("Lease", "LeaseRevoke", pb.LeaseRevokeRequest, pb.LeaseRevokeResponse)
_KEEP_ALIVE = _method("Lease", "LeaseKeepAlive", pb.LeaseKeepAliveRequest, pb.LeaseKeepAliveResponse)
_AUTHENTICATE = _method("Auth", "Authenticate", pb.AuthenticateRequest, pb.AuthenticateResponse)


class _ProblemError(Exception):
    """An attempt has failed."""

    def __init__(self, problem: EtcdProblem) -> None:
        super().__init__(problem.why)
        self.problem = problem


class _Endpoint:
    """A channel to one member, opened by the first call."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None) -> None:
        self.address = address
        self.problem: EtcdProblem | None = None  # of its last attempt
        self._credentials = credentials
        self._channel: grpc.aio.Channel | None = None
        self._former: grpc.aio.Channel | None = None  # with the certificate before this one
        self._calls: dict[str, Any] = {}

    async def ask(
        self, method: _Method[RequestT, ResponseT], request: RequestT, metadata: _Metadata, seconds: float
    ) -> ResponseT:
        call = self._calls.get(method.path)
        if call is None:
            call = self._calls[method.path] = self._open().unary_unary(
                method.path,
                request_serializer=method.request.SerializeToString,
                response_deserializer=method.response.FromString,
            )
        with _problems():
            answer: ResponseT = await call(request, timeout=seconds, metadata=metadata)
        return answer

    def stream(
        self, method: _Method[RequestT, ResponseT], metadata: _Metadata
    ) -> "grpc.aio.StreamStreamCall[RequestT, ResponseT]":
        call: grpc.aio.StreamStreamMultiCallable[RequestT, ResponseT] = self._open().stream_stream(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return call(metadata=metadata)

    async def renew(self, credentials: grpc.ChannelCredentials) -> None:
        """What is asked from now on is asked over a connection with these. Calls that are under way end on the one
        before, and a watch stays there as long as it lasts: it would lose nothing, but all would be read anew."""
        self._credentials = credentials
        oldest, self._former, self._channel = self._former, self._channel, None
        self._calls.clear()
        if oldest is not None:
            await oldest.close()

    async def close(self) -> None:
        channels = [self._channel, self._former]
        self._channel = self._former = None
        self._calls.clear()
        for channel in channels:
            if channel is not None:
                await channel.close()

    def _open(self) -> grpc.aio.Channel:
        # Not in __init__: a channel belongs to the event loop that is running when it is made.
        if self._channel is None:
            target = f"dns:///{self.address}"
            if self._credentials is None:
                self._channel = grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
            else:
                self._channel = grpc.aio.secure_channel(target, self._credentials, options=CHANNEL_OPTIONS)
        return self._channel


class EtcdClient:
    """`Etcd` over the network. Reads the certificates when it is made, and when they change; connects when it is first
    asked."""

    def __init__(
        self,
        endpoints: Sequence[str],  # host:port
        *,
        tls: EtcdTls | None = None,
        user: str | None = None,
        password: str | None = None,
        timeout_s: float = 3.0,  # of a call, with all its attempts
    ) -> None:
        if not endpoints:
            raise ValueError("Expected at least one endpoint of etcd.")
        self.certificates = tls.reloaded() if tls is not None else None
        self._polled_s = time.monotonic()  # at the files of the certificates
        credentials = self.certificates.current.of_channels if self.certificates is not None else None
        self._endpoints = [_Endpoint(address, credentials) for address in endpoints]
        self._current = 0
        self._user = user or None
        self._password = password or ""
        self._token: str | None = None  # "" where etcd wants none
        self._token_lock = asyncio.Lock()
        self.timeout_s = timeout_s
        self._is_closed = False

    @property
    def endpoint(self) -> str:
        """Whom it asks first: the one that answered last."""
        return self._endpoints[self._current].address

    @property
    def _attempt_s(self) -> float:
        return max(_ATTEMPT_S_MIN, self.timeout_s / len(self._endpoints))

    # --- keys -------------------------------------------------------------------------------------------------

    async def get(self, key: bytes) -> Row | None:
        answer = await self._ask(_RANGE, pb.RangeRequest(key=key))
        return row_of(answer.kvs[0]) if answer.kvs else None

    async def read(self, prefix: bytes) -> Snapshot:
        for _ in range(_READ_TRIES):
            try:
                return await self._read_pages(prefix)
            except CompactedError:
                continue
        raise EtcdUnavailableError("etcd forgets its history faster than it can be read.")

    async def _read_pages(self, prefix: bytes) -> Snapshot:
        key, end = range_of(prefix)
        rows: list[Row] = []
        revision = 0
        while True:
            page = await self._ask(_RANGE, page_request(key, end, revision))
            revision = revision or page.header.revision
            rows += map(row_of, page.kvs)
            if not page.more:
                return Snapshot(revision, rows)
            key = rows[-1].key + b"\0"

    async def commit(self, compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> Committed:
        leases = [change.lease for change in changes if isinstance(change, Put) and change.lease]
        answer = await self._ask(_TXN, commit_request(compares, changes), lease=next(iter(leases), 0), is_once=True)
        return Committed(answer.succeeded, answer.header.revision)

    # --- leases -----------------------------------------------------------------------------------------------

    async def grant(self, seconds: int) -> int:
        return (await self._ask(_GRANT, pb.LeaseGrantRequest(TTL=seconds))).ID

    async def revoke(self, lease: int) -> None:
        try:
            await self._ask(_REVOKE, pb.LeaseRevokeRequest(ID=lease), lease=lease)
        except LeaseLostError:
            pass

    async def keep_alive(self, lease: int, seconds: int) -> None:
        async def renew(endpoint: _Endpoint, metadata: _Metadata, attempt_s: float) -> int:
            return await _renew(endpoint, lease, metadata, attempt_s)

        ends_s = time.monotonic() + seconds
        failures = 0  # since it was last renewed
        while True:
            began_s = time.monotonic()
            try:
                ttl_s = await self._try(renew, timeout_s=min(self.timeout_s, ends_s - began_s), lease=lease)
            except EtcdUnavailableError as error:
                left_s = ends_s - time.monotonic()
                if self._is_closed:
                    raise
                if left_s <= 0:
                    raise LeaseLostError(lease, f"etcd has not answered for {seconds} s") from error
                failures += 1
                await asyncio.sleep(min(left_s, _LONG_BACKOFF.pause_s(failures, random.random)))
                continue
            if ttl_s <= 0:
                raise LeaseLostError(lease, "etcd does not know it any more")
            failures = 0
            ends_s = began_s + ttl_s  # etcd counts from when it was renewed, which was later
            await asyncio.sleep(ttl_s / 3)

    # --- watches ----------------------------------------------------------------------------------------------

    async def watch(self, prefix: bytes, after_revision: int) -> AsyncGenerator[Changes, None]:
        reader = WatchReader(prefix, after_revision)
        outage = _Outage()
        is_resumed = False
        while True:
            endpoint, token, began_s = self._endpoints[self._current], self._token, time.monotonic()
            try:
                async with aclosing(self._watch_once(endpoint, reader, is_resumed)) as stream:
                    async for changes in stream:
                        outage.end()
                        yield changes
            except _ProblemError as error:
                problem = error.problem
            except EtcdUnavailableError as error:  # there was no token to be had
                if self._is_closed:
                    raise
                problem = EtcdProblem(Cause.NOT_DONE, f"cannot be asked: {error}")
            is_resumed = True
            if time.monotonic() - began_s > _STEADY_S:
                outage.end()
            # Some releases of etcd call a token that they have forgotten a lack of permission.
            if problem.kind in (Cause.TOKEN, Cause.DENIED) and self._user is not None and not outage.is_token_new:
                outage.is_token_new = True
                self._forget_token(token)
            else:
                _raise_what_is_final(problem, 0)
                self._move_on(endpoint, problem)
                outage.report(endpoint.address, problem.why)
            await asyncio.sleep(outage.next_pause_s())

    async def _watch_once(
        self, endpoint: _Endpoint, reader: WatchReader, is_resumed: bool
    ) -> AsyncGenerator[Changes, None]:
        """Over one connection, until it fails with _ProblemError."""
        metadata = await self._metadata(time.monotonic() + self.timeout_s)
        self._check_open()
        call = endpoint.stream(_WATCH, metadata)
        try:
            with self._closing(), _problems():
                async with asyncio.timeout(self.timeout_s):
                    await call.write(reader.begin())
                    answer = await _read(call)
            if answer.header.revision < reader.reported_revision and not answer.canceled:
                await self._check_history(reader)
            endpoint.problem = None
            while True:
                if answer.compact_revision:
                    raise CompactedError(answer.compact_revision)
                if answer.canceled:
                    raise _ProblemError(judge("", answer.cancel_reason))
                if is_resumed:
                    is_resumed = False
                    yield Changes(reader.reported_revision, [], is_resumed=True)
                changes = None if answer.created else reader.take(answer)
                if changes is not None:
                    yield changes
                with self._closing(), _problems():
                    answer = await _read(call)
        finally:
            call.cancel()

    async def _check_history(self, reader: WatchReader) -> None:
        """A member that knows less than we were told is behind, unless all of etcd was set back, by a restore say.

        One that was set back and has gone beyond that again is not noticed here: see `Changes.is_resumed`.
        """
        answer = await self._ask(_RANGE, pb.RangeRequest(key=range_of(reader.prefix)[0]))
        if answer.header.revision < reader.reported_revision:
            raise CompactedError(answer.header.revision)

    # --- calls ------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._is_closed = True
        for endpoint in self._endpoints:
            await endpoint.close()

    async def _ask(
        self, method: _Method[RequestT, ResponseT], request: RequestT, *, lease: int = 0, is_once: bool = False
    ) -> ResponseT:
        async def attempt(endpoint: _Endpoint, metadata: _Metadata, seconds: float) -> ResponseT:
            return await endpoint.ask(method, request, metadata, seconds)

        return await self._try(attempt, timeout_s=self.timeout_s, lease=lease, is_once=is_once)

    async def _try(
        self,
        attempt: Callable[[_Endpoint, _Metadata, float], Awaitable[T]],
        *,
        timeout_s: float,
        lease: int = 0,
        is_once: bool = False,  # it may not be carried out twice
        is_login: bool = False,
    ) -> T:
        """One endpoint after the other until one answers or the time is over."""
        deadline_s = time.monotonic() + timeout_s
        failures = 0
        is_token_new = False
        while True:
            await self._poll_certificates()
            metadata = await self._metadata(deadline_s) if not is_login else _metadata("")
            self._check_open()
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise self._no_answer(timeout_s)
            endpoint, token = self._endpoints[self._current], self._token
            try:
                with self._closing():
                    answer = await attempt(endpoint, metadata, left_s if is_once else min(left_s, self._attempt_s))
            except _ProblemError as error:
                problem = error.problem
            else:
                endpoint.problem = None
                return answer
            if problem.kind is Cause.TOKEN and self._user is not None and not is_token_new and not is_login:
                is_token_new = True
                self._forget_token(token)
                continue
            _raise_what_is_final(problem, lease)
            self._move_on(endpoint, problem)
            if problem.kind is Cause.LOST and is_once:
                raise CommitUnknownError(
                    f"The answer of etcd to a commit was lost: {endpoint.address} {problem.why}. It may have been "
                    f"carried out."
                )
            failures += 1
            rounds, further = divmod(failures, len(self._endpoints))
            if not further:
                pause_s = _BACKOFF.pause_s(rounds, random.random)
                await asyncio.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))

    async def _poll_certificates(self) -> None:
        """Now and then. Somebody always asks something: leases are renewed, and the map is confirmed."""
        now_s = time.monotonic()
        if self.certificates is None or now_s - self._polled_s < reloading.POLL_SECONDS:
            return
        self._polled_s = now_s
        if await asyncio.to_thread(self.certificates.poll):
            for endpoint in self._endpoints:
                await endpoint.renew(self.certificates.current.of_channels)

    def _move_on(self, endpoint: _Endpoint, problem: EtcdProblem) -> None:
        """To the next endpoint, unless another call has done so already."""
        endpoint.problem = problem
        if self._endpoints[self._current] is endpoint:
            self._current = (self._current + 1) % len(self._endpoints)

    def _no_answer(self, timeout_s: float) -> EtcdError:
        problems = [
            (endpoint.address, endpoint.problem) for endpoint in self._endpoints if endpoint.problem is not None
        ]
        list_of_problems = "; ".join(f"{address} {problem.why}" for address, problem in problems)
        if problems and all(problem.kind is Cause.MISFIT for _, problem in problems):
            return EtcdRefusedError(f"etcd cannot be talked to: {list_of_problems}.")
        addresses = ", ".join(endpoint.address for endpoint in self._endpoints)
        return EtcdUnavailableError(f"etcd did not answer within {timeout_s:.3g} s: {list_of_problems or addresses}.")

    def _check_open(self) -> None:
        if self._is_closed:
            raise EtcdUnavailableError(_CLOSED)

    @contextmanager
    def _closing(self) -> Iterator[None]:
        """Closing a channel cancels its calls, which looks as if the task of the caller were cancelled."""
        try:
            yield
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            if self._is_closed:
                raise EtcdUnavailableError(_CLOSED) from None
            raise _ProblemError(EtcdProblem(Cause.LOST, "was asked with a certificate that is no more")) from None

    # --- tokens -----------------------------------------------------------------------------------------------

    async def _metadata(self, deadline_s: float) -> _Metadata:
        if self._user is None:
            return _metadata("")
        async with self._token_lock:
            if self._token is None:
                self._token = await self._log_in(self._user, deadline_s)
            return _metadata(self._token)

    async def _log_in(self, user: str, deadline_s: float) -> str:
        request = pb.AuthenticateRequest(name=user, password=self._password)

        async def attempt(endpoint: _Endpoint, metadata: _Metadata, seconds: float) -> str:
            try:
                return (await endpoint.ask(_AUTHENTICATE, request, metadata, seconds)).token
            except _ProblemError as error:
                if error.problem.kind is Cause.DENIED:
                    return ""  # etcd knows no users and so wants none
                raise

        return await self._try(attempt, timeout_s=max(0.0, deadline_s - time.monotonic()), is_login=True)

    def _forget_token(self, token: str | None) -> None:
        if self._token == token:
            self._token = None


class _Outage:
    """What a watch remembers from one attempt to the next, until it works again."""

    def __init__(self) -> None:
        self.is_token_new = False
        self._is_reported = False
        self._failures = 0

    def end(self) -> None:
        self.is_token_new = self._is_reported = False
        self._failures = 0

    def next_pause_s(self) -> float:
        self._failures += 1
        return _LONG_BACKOFF.pause_s(self._failures, random.random)

    def report(self, address: str, why: str) -> None:
        if not self._is_reported:
            self._is_reported = True
            _log.warning("etcd_watch_interrupted", endpoint=address, why=why)


@contextmanager
def _problems() -> Iterator[None]:
    """Turns every way an attempt can fail into _ProblemError."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _ProblemError(judge(error.code().name, error.details() or "")) from None
    except TimeoutError:
        raise _ProblemError(NO_ANSWER) from None
    except asyncio.InvalidStateError:  # a stream that has ended
        raise _ProblemError(EtcdProblem(Cause.LOST, "has ended the connection")) from None


async def _read(call: "grpc.aio.StreamStreamCall[Any, ResponseT]") -> ResponseT:
    answer: Any = await call.read()
    if answer is grpc.aio.EOF:
        raise asyncio.InvalidStateError
    found: ResponseT = answer
    return found


async def _renew(endpoint: _Endpoint, lease: int, metadata: _Metadata, seconds: float) -> int:
    """How many seconds the lease has from now; 0 if it is gone. etcd has only a stream for that: one for each."""
    call = endpoint.stream(_KEEP_ALIVE, metadata)
    try:
        with _problems():
            async with asyncio.timeout(seconds):
                await call.write(pb.LeaseKeepAliveRequest(ID=lease))
                return (await _read(call)).TTL
    finally:
        call.cancel()


def _metadata(token: str) -> _Metadata:
    # With `hasleader` a member that has lost sight of the others says so, instead of leaving us waiting.
    leader = ("hasleader", "true")
    return (leader, ("token", token)) if token else (leader,)


def _raise_what_is_final(problem: EtcdProblem, lease: int) -> None:
    if problem.kind in (Cause.TOKEN, Cause.DENIED, Cause.REFUSED):
        raise EtcdRefusedError(problem.why)
    if problem.kind is Cause.LEASE_GONE:
        raise LeaseLostError(lease, "etcd does not know it any more")
    if problem.kind is Cause.COMPACTED:
        raise CompactedError(0)
