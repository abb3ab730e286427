"""The app: functions become tasks, calls become queued tasks, and handles lead back to their results.

    app = Holdfast("localhost:7400")

    @app.task(queue="mail")
    def send(to: str) -> str: ...

    send.enqueue("ada@example.org").result(timeout=10)

What has `_async` in its name, and every method of `AsyncHandle`, is for programs with an event loop; the rest blocks.
"""

import inspect
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial, update_wrapper
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast, overload

from holdfast.client._fitting import changed
from holdfast.client._loop_thread import LoopThread
from holdfast.client._options import Key, Options, Retry, Seconds, checked, duration_ms, limit_s, refused
from holdfast.client._short_calls import ShortCalls
from holdfast.client.aio import DEFAULT_ADDRESS, DEFAULT_TIMEOUT_S, AsyncClient
from holdfast.client.arguments import decode_json, encode_call, signature_of
from holdfast.client.codec import Codec
from holdfast.client.enqueued import Enqueued, enqueue_each
from holdfast.client.errors import NotJson, Rejected, ResultExpired, TaskCancelled, TaskFailed
from holdfast.client.models import Accepted, NewTask, RetryPolicy, TaskInfo, TaskState, UniqueScope
from holdfast.client.tls import Tls, tls_of
from holdfast.client.tokens import Token, token_source

DEFAULT_QUEUE = "default"
DEFAULT_LEASE_S = 30.0
ADDRESS_VARIABLE = "HOLDFAST_ADDRESS"
TRANSPORT_VARIABLE = "HOLDFAST_TRANSPORT"

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A call of a task that can be enqueued, together with others: see `Holdfast.enqueue_many`.

    >>> app = Holdfast("localhost:7400")
    >>> @app.task(queue="mail")
    ... def greet(name: str) -> str:
    ...     return f"Hello {name}"
    >>> greet.call("Ada").new_task.payload
    b'["Ada"]'
    """

    new_task: NewTask


class _TaskBase(Generic[P, R]):
    """What tasks made of blocking and of async functions have in common."""

    is_async = False
    __name__: str  # the function's, with its documentation and its module

    def __init__(self, app: "Holdfast", function: Callable[P, Any], name: str, options: Options, lease_ms: int) -> None:
        self._app = app
        self._signature = signature_of(function)
        self._options = options
        self.function = function
        self.name = name  # what the server calls it; a worker finds the function by it
        self.lease_ms = lease_ms
        update_wrapper(cast(Any, self), function)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of queue {self.queue}>"

    @property
    def queue(self) -> str:
        return self._options.queue

    def options(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        max_claims: int | None = None,
        retry: Retry | RetryPolicy | None = None,
        timeout: Seconds | None = None,
        ttl: Seconds | None = None,
        unique_key: Key | None = None,
        unique_scope: UniqueScope | str | None = None,
        limit_key: Key | None = None,
        tenant: Key | None = None,
        delay: Seconds | None = None,
        run_at: datetime | None = None,
        request_id: Key | None = None,
        request_id_ttl: Seconds | None = None,
        headers: Mapping[str, str] | None = None,
        result_ttl: Seconds | None = None,
    ) -> Self:
        """The same task, enqueued in another way: `send.options(delay=60).enqueue(…)`.

        delay: not before so many seconds from now. run_at: not before this moment; it must have a time zone.
        request_id: enqueue it once only; the same id in the same queue leads to the same task, for a day or as long as
        `request_id_ttl` says, and at least while the task lives. For many calls a function that makes one of the
        arguments of each, as for the keys.
        result_ttl: how long the result is kept. headers: carried with the task.
        What else there is takes the place of what `@app.task` was given, `retry` as a whole; an empty text takes a key
        or a tenant away.
        """
        given = checked(
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            max_claims=max_claims,
            retry=retry,
            timeout=timeout,
            ttl=ttl,
            unique_key=unique_key,
            unique_scope=unique_scope,
            limit_key=limit_key,
            tenant=tenant,
            delay=delay,
            run_at=run_at,
            request_id=request_id,
            request_id_ttl=request_id_ttl,
            headers=headers,
            result_ttl=result_ttl,
        )
        # Not copy.copy: what was set on the task by its users is not ours to copy.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._options = replace(self._options, **given)
        return other

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """This call as a value, for `Holdfast.enqueue_many`."""
        payload = encode_call(self.name, self._signature, args, kwargs)
        return Call(self._options.new_task(self.name, payload, self._signature.bind(*args, **kwargs)))

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> "Handle[R]":
        """Hands the call over. When this returns, the task is durable and will not be lost.

        Arguments travel as JSON. The call is repeated if the connection fails, and makes one task all the same.
        """
        return self._app.enqueue(self.call(*args, **kwargs))

    async def enqueue_async(self, *args: P.args, **kwargs: P.kwargs) -> "AsyncHandle[R]":
        """The same for programs with an event loop."""
        return await self._app.enqueue_async(self.call(*args, **kwargs))

    def enqueue_many(self, arguments: Iterable[object]) -> "Enqueued[Handle[R]]":
        """Hands over one call for each of these, as `Holdfast.enqueue_many` does: by far the cheapest way.

        Each is a tuple of arguments, a dictionary of arguments by name, or else the only argument. One that is a tuple
        or a dictionary itself is put into a tuple. Arguments that cannot be sent are refused in their place.

        >>> app = Holdfast("localhost:7400")
        >>> @app.task
        ... def greet(name: str, mark: str = "!") -> str:
        ...     return f"Hello {name}{mark}"
        >>> len(greet.enqueue_many(["Ada", ("Grace", "?"), {"name": "Edsger"}]).handles())
        3
        >>> outcomes = greet.enqueue_many(["Ada", object()])
        >>> print(len(outcomes.accepted), outcomes.refused[1].field)
        1 tasks[1].arguments
        >>> once = greet.options(request_id=lambda name, mark: f"greet-{name}{mark}")
        >>> len(once.enqueue_many(["Ada", "Grace"]).handles())  # may be done again
        2
        """
        return self._app._enqueue_each(self._tasks_of(arguments))

    async def enqueue_many_async(self, arguments: Iterable[object]) -> "Enqueued[AsyncHandle[R]]":
        """The same for programs with an event loop."""
        return await self._app._enqueue_each_async(self._tasks_of(arguments))

    def _tasks_of(self, arguments: Iterable[object]) -> list[NewTask | Rejected]:
        if isinstance(arguments, str | bytes | Mapping):  # it would be taken letter by letter, or key by key
            sentence = f"Expected the arguments of several calls of {self.name}, but got one: put it into a list."
            raise refused("arguments", sentence)
        return [self._task_of(argument, f"tasks[{place}]") for place, argument in enumerate(arguments)]

    def _task_of(self, arguments: object, where: str) -> NewTask | Rejected:
        positional = arguments if isinstance(arguments, tuple) else (arguments,)
        make: Callable[..., Call[R]] = self.call
        try:
            return (make(**arguments) if isinstance(arguments, Mapping) else make(*positional)).new_task
        except Rejected as error:  # by the name of an option that is made of the arguments
            return changed(error, field=f"{where}.{error.field}")
        except NotJson as error:
            return refused(f"{where}.arguments", str(error))
        except TypeError as error:  # the function does not take them
            named = isinstance(arguments, Mapping)
            hint = "; a dictionary that is the argument itself goes into a tuple" if named else ""
            return refused(f"{where}.arguments", f"{error}{hint}.")


class Task(_TaskBase[P, R]):
    """A function that can be enqueued. Called directly it runs here and now, like the function it was."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return cast(R, self.function(*args, **kwargs))


class AsyncTask(_TaskBase[P, R]):
    """A coroutine function that can be enqueued. Called directly it runs here and now, like the function it was."""

    is_async = True

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return cast(Coroutine[Any, Any, R], self.function(*args, **kwargs))


class _TaskReference:
    """Which task a handle is of."""

    __slots__ = ("_app", "duplicate", "duplicate_state", "id")

    def __init__(
        self, app: "Holdfast", task_id: str, *, duplicate: bool = False, duplicate_state: TaskState | None = None
    ) -> None:
        self._app = app
        self.id = task_id  # a UUID
        # Its request_id was seen before, or its unique_key is taken: this is the task that has it.
        self.duplicate = duplicate
        self.duplicate_state = duplicate_state  # what that task was then, if the server knew

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of task {self.id}>"


class Handle(_TaskReference, Generic[R]):
    """A task that was enqueued, wherever it is now."""

    __slots__ = ()

    def info(self) -> TaskInfo:
        """All that the server knows about it; raises `NotFound` once the task is forgotten."""
        return self._app.run(lambda client: client.get_task(self.id))

    def status(self) -> TaskState:
        """Where it is in its life."""
        return self.info().state

    def result(self, timeout: Seconds | None = None) -> R:
        """Waits for the task to finish and returns what its function returned.

        Raises `TaskFailed` if the task is dead, `TaskCancelled` if it was cancelled, `ResultTimeout` (a `TimeoutError`)
        if it does not finish in `timeout` seconds, `ResultExpired` if the time of the result is over, and `NotFound` if
        the task is forgotten: a result is kept for a day by default, the bare fact that a task without one has finished
        for ten minutes. With a `result_ttl` of 0 nothing is kept, and None is returned.
        """
        timeout_s = None if timeout is None else limit_s("timeout", timeout)
        return cast(R, _result(self._app.run(lambda client: client.wait_task(self.id, timeout_s=timeout_s))))

    def cancel(self) -> TaskState:
        """Cancels the task: CANCELLED if it was waiting, CLAIMED if the worker that runs it will be told."""
        return self._app.run(lambda client: client.cancel(self.id)).state


class AsyncHandle(_TaskReference, Generic[R]):
    """A task that was enqueued, for programs with an event loop."""

    __slots__ = ()

    async def info(self) -> TaskInfo:
        """See `Handle.info`."""
        return await self._app.run_async(lambda client: client.get_task(self.id))

    async def status(self) -> TaskState:
        """See `Handle.status`."""
        return (await self.info()).state

    async def result(self, timeout: Seconds | None = None) -> R:
        """See `Handle.result`."""
        timeout_s = None if timeout is None else limit_s("timeout", timeout)
        info = await self._app.run_async(lambda client: client.wait_task(self.id, timeout_s=timeout_s))
        return cast(R, _result(info))

    async def cancel(self) -> TaskState:
        """See `Handle.cancel`."""
        return (await self._app.run_async(lambda client: client.cancel(self.id))).state


class _Decorator:
    """What `@app.task(…)` gives; knows both kinds of functions."""

    def __init__(self, decorate: Callable[[Callable[..., Any]], Any]) -> None:
        self._decorate = decorate

    # A coroutine function also fits the second form; the first that fits is meant.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        return self._decorate(function)


class Holdfast:
    """An app: the server it talks to and the tasks it knows.

    `address` is that of the server, or several of a cluster with commas between them; by default the environment's
    HOLDFAST_ADDRESS or else localhost:7400. `timeout` is how long a call may take, in seconds. With `direct` calls go
    straight to the leaders of the shards of a cluster instead of through its router. `transport` is `"auto"` or
    `"grpc"`, by default what the environment's HOLDFAST_TRANSPORT says, or else `"auto"`. `token` and `token_file` say
    who calls, where servers ask. Of all four see `AsyncClient`.
    `tls` says whom to trust and what to show (`Tls`), by default what the environment's HOLDFAST_TLS_CA, _CERT and _KEY
    say, or else nothing is encrypted.
    `codec` compresses and encrypts arguments and results, so that servers see neither: see `Codec`.
    Nothing is sent before the first call. Any number of threads and event loops may use one app.

    >>> app = Holdfast("localhost:7400")
    >>> @app.task(queue="mail", max_attempts=5)
    ... def greet(name: str) -> str:
    ...     return f"Hello {name}"
    >>> greet("Ada")
    'Hello Ada'
    >>> greet
    <Task greet of queue mail>
    """

    def __init__(
        self, address: str | None = None, *, timeout: Seconds = DEFAULT_TIMEOUT_S, direct: bool = False,
        transport: str | None = None, token: Token | None = None, token_file: str | Path | None = None,
        tls: Tls | None = None,
        codec: Codec | None = None,
    ) -> None:  # fmt: skip
        if address is None:
            address = os.environ.get(ADDRESS_VARIABLE) or DEFAULT_ADDRESS
        if transport is None:
            transport = os.environ.get(TRANSPORT_VARIABLE) or "auto"
        self.token = token_source(token, token_file)  # workers of this app go with the same
        tls = tls_of(os.environ) if tls is None else tls
        make = partial(
            AsyncClient, address, timeout_s=limit_s("timeout", timeout), direct=direct, transport=transport,
            token=self.token, tls=tls, codec=codec,
        )  # fmt: skip
        self.address = make().address
        self.direct = direct  # workers of this app go the same way
        self.transport = transport  # likewise
        self.tls = tls  # likewise
        self.codec = codec  # likewise
        self._tasks: dict[str, Task[..., Any] | AsyncTask[..., Any]] = {}
        self._thread = LoopThread("holdfast-app", make)
        self._short = ShortCalls(self._thread)

    def __repr__(self) -> str:
        return f"<Holdfast app at {self.address} with {len(self._tasks)} tasks>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection. Not needed at the end of a program."""
        self._thread.close()
        self._short.close()

    @property
    def tasks(self) -> Mapping[str, Task[..., Any] | AsyncTask[..., Any]]:
        """The tasks by name."""
        return MappingProxyType(self._tasks)

    @overload
    def task(  # type: ignore[overload-overlap]
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        function: None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        lease: Seconds = DEFAULT_LEASE_S,
        priority: int | None = None,
        max_attempts: int | None = None,
        max_claims: int | None = None,
        retry: Retry | RetryPolicy | None = None,
        timeout: Seconds | None = None,
        ttl: Seconds | None = None,
        unique_key: Key | None = None,
        unique_scope: UniqueScope | str | None = None,
        limit_key: Key | None = None,
        tenant: Key | None = None,
    ) -> _Decorator: ...
    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        lease: Seconds = DEFAULT_LEASE_S,
        priority: int | None = None,
        max_attempts: int | None = None,
        max_claims: int | None = None,
        retry: Retry | RetryPolicy | None = None,
        timeout: Seconds | None = None,
        ttl: Seconds | None = None,
        unique_key: Key | None = None,
        unique_scope: UniqueScope | str | None = None,
        limit_key: Key | None = None,
        tenant: Key | None = None,
    ) -> Any:
        """Makes a task of a function, blocking or async: `@app.task` or `@app.task(queue="mail", …)`.

        name: what it is called on the server, the function's own name by default. Producers and workers must agree.
        lease: after so many seconds without a sign of life of its worker the task goes to another one. Workers extend
        it while the function runs, so it need not be longer than the function takes.
        priority: 0 to 9, higher first (the server's default is 5).
        max_attempts: failures before it is a dead letter (the server's default is 10); max_claims: the same for claims,
        however each ended. retry: how long to wait before the next attempt, and after which exceptions there is none.
        timeout: how long one attempt may take, 1 s to 30 days. ttl: a dead letter if not started so long after it could
        have been, 1 s to a year.
        unique_key: while a task of the queue has it, another one leads to that task; `unique_scope` says how long that
        is, `until_done` or `while_waiting`. limit_key: what the queue's limits per key count by. tenant: whose task it
        is. Each of the three is a text, or a function that makes one of the task's arguments, defaults included.
        """
        lease_ms = duration_ms("lease", lease)
        if lease_ms <= 0:
            raise refused("lease", f"Expected lease of more than 0 seconds, but got {lease}.", "OUT_OF_RANGE")
        given = checked(
            priority=priority,
            max_attempts=max_attempts,
            max_claims=max_claims,
            retry=retry,
            timeout=timeout,
            ttl=ttl,
            unique_key=unique_key,
            unique_scope=unique_scope,
            limit_key=limit_key,
            tenant=tenant,
        )
        options = Options(queue, **given)

        def decorate(function: Callable[..., Any]) -> Any:
            if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
                sentence = f"{function.__qualname__} is a generator: a task returns one value when it is done."
                raise refused("function", sentence)
            kind: type[Any] = AsyncTask if inspect.iscoroutinefunction(function) else Task
            return self._register(kind(self, function, name or getattr(function, "__name__", ""), options, lease_ms))

        return _Decorator(decorate) if function is None else decorate(function)

    def _register(self, task: Task[..., Any] | AsyncTask[..., Any]) -> Task[..., Any] | AsyncTask[..., Any]:
        is_text = isinstance(task.name, str) and task.name.isprintable()
        if not task.name or not is_text or task.name == "<lambda>":
            raise refused("name", f"Expected a task with a name, but got {task.name!r}: give it one with name=….")
        if task.name in self._tasks:
            raise refused(
                "name", f"Expected one task named {task.name}, but there is one already: set name= on one of them."
            )
        self._tasks[task.name] = task
        return task

    # --- enqueueing -------------------------------------------------------------------------------------------

    def enqueue(self, call: Call[R]) -> Handle[R]:
        """Hands over one call, made with `task.call(…)`; `task.enqueue(…)` is the same in one step."""
        return self._handle(self._short.run(lambda client: client.enqueue(call.new_task)))

    async def enqueue_async(self, call: Call[R]) -> AsyncHandle[R]:
        """The same for programs with an event loop."""
        return self._async_handle(await self.run_async(lambda client: client.enqueue(call.new_task)))

    def enqueue_many(self, calls: Iterable[Call[R]]) -> Enqueued[Handle[R]]:
        """Hands over many calls, a thousand at a time: by far the cheapest way. Each has its own answer, in order: the
        handle of its task, or a `Rejected`, whatever is wrong with it or happened on the way. Look at the answers, or
        call `handles()` of them, which raises if a call was refused. This itself raises only if the app is closed.
        `task.enqueue_many(…)` is the same for one task.

        What is refused leaves the others alone. A call to the server that fails, or whose outcome is unknown, is the
        refusal of its own tasks; after two such in a row nothing more is sent. Calls with a request id may always be
        handed over again: `repeatable` has the places of those for which that helps and does no harm.

        >>> app = Holdfast("localhost:7400")
        >>> @app.task
        ... def greet(name: str) -> str:
        ...     return f"Hello {name}"
        >>> calls = [greet.call("Ada"), greet.options(priority=9).call("Grace")]
        >>> for outcome in app.enqueue_many(calls):
        ...     print(f"refused: {outcome}" if isinstance(outcome, Rejected) else "accepted")
        accepted
        accepted
        >>> ada, grace = app.enqueue_many(calls).handles()
        """
        return self._enqueue_each([call.new_task for call in calls])

    async def enqueue_many_async(self, calls: Iterable[Call[R]]) -> Enqueued[AsyncHandle[R]]:
        """The same for programs with an event loop."""
        return await self._enqueue_each_async([call.new_task for call in calls])

    def _enqueue_each(self, tasks: Sequence[NewTask | Rejected]) -> Enqueued[Handle[Any]]:
        return self._short.run(lambda client: enqueue_each(client, tasks, self._handle))

    async def _enqueue_each_async(self, tasks: Sequence[NewTask | Rejected]) -> Enqueued[AsyncHandle[Any]]:
        return await self.run_async(lambda client: enqueue_each(client, tasks, self._async_handle))

    def _handle(self, accepted: Accepted) -> Handle[Any]:
        return Handle(self, accepted.task_id, duplicate=accepted.duplicate, duplicate_state=accepted.state)

    def _async_handle(self, accepted: Accepted) -> AsyncHandle[Any]:
        return AsyncHandle(self, accepted.task_id, duplicate=accepted.duplicate, duplicate_state=accepted.state)

    def handle(self, task_id: str) -> Handle[Any]:
        """The handle of a task whose id was kept somewhere."""
        return Handle(self, task_id)

    def handle_async(self, task_id: str) -> AsyncHandle[Any]:
        """The same for programs with an event loop."""
        return AsyncHandle(self, task_id)

    # --- the way to the server --------------------------------------------------------------------------------

    def run(self, call: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """Any call of the client on this app's connection: `app.run(lambda client: client.queue_stats("mail"))`."""
        return self._thread.run(call)

    async def run_async(self, call: Callable[[AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """The same for programs with an event loop."""
        return await self._thread.run_async(call)


def _result(info: TaskInfo) -> Any:
    if info.state is TaskState.CANCELLED:
        raise TaskCancelled(info.task_id)
    if info.state is not TaskState.SUCCEEDED:
        error = info.last_error
        kind, message = (error.type, error.message) if error is not None else ("", "")
        raise TaskFailed(info.task_id, info.dead_reason, kind, message)
    if info.result_expired_at_ms is not None:
        raise ResultExpired(info.task_id, info.result_expired_at_ms)
    return None if info.result is None else decode_json(info.result, f"the result of task {info.task_id}")
