"""What a new task may be given, as options: of `enqueue`, and of `schedule put` for the tasks that it makes."""

import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from holdfast.cli import calls, options, times
from holdfast.cli.commands.shared import given_text, parsed
from holdfast.cli.problems import usage
from holdfast.client import NewTask, RetryPolicy, RetryShape, UniqueScope
from holdfast.client.arguments import JSON_HEADERS

_PAUSE = times.duration_between_ms("0", "366d")


def _option(name: str, help_text: str, metavar: str | None = None) -> Any:
    return typer.Option(name, metavar=metavar, help=help_text, show_default=False)


OPTIONS: Mapping[str, Any] = {
    "priority": Annotated[
        int | None, typer.Option("--priority", min=0, max=9, help="0 to 9, higher first.", show_default="5")
    ],
    "tenant": Annotated[str | None, _option("--tenant", "On whose behalf: tenants of a queue take turns.")],
    "limit_key": Annotated[
        str | None, _option("--limit-key", "Caps per key count by it; tasks of one key run in order.", "KEY")
    ],
    "unique_key": Annotated[
        str | None, _option("--unique-key", "One task of the queue at a time has it; another adds nothing.", "KEY")
    ],
    "unique": Annotated[
        str | None, _option("--unique", "How long the unique key is taken; until-done if not given.",
                            options.words(UniqueScope))
    ],
    "max_attempts": Annotated[
        int | None,
        typer.Option("--max-attempts", min=1, metavar="N", help="Failures before it is a dead letter.",
                     show_default=False),
    ],
    "max_claims": Annotated[
        int | None,
        typer.Option("--max-claims", min=1, metavar="N", help="Claims before it is a dead letter.", show_default=False),
    ],
    "retry_shape": Annotated[
        str | None, _option("--retry-shape", "How delays between attempts grow.", options.words(RetryShape))
    ],
    "retry_base": Annotated[str | None, _option("--retry-base", "Delay before the second attempt: 1s.", "TIME")],
    "retry_factor": Annotated[str | None, _option("--retry-factor", "Growth of that delay: 1 to 100.", "X")],
    "retry_cap": Annotated[str | None, _option("--retry-cap", "The longest delay between attempts: 1h.", "TIME")],
    "retry_jitter": Annotated[str | None, _option("--retry-jitter", "Random part of a delay: 0 to 1.", "X")],
    "non_retryable": Annotated[
        list[str] | None,
        _option("--non-retryable", "An error after which it is dead at once; may be repeated.", "TYPE"),
    ],
    "task_timeout": Annotated[
        str | None, _option("--task-timeout", "How long one attempt may run: 15m.", "TIME")
    ],
    "ttl": Annotated[
        str | None, _option("--ttl", "Not started so long after it could have been: a dead letter.", "TIME")
    ],
    "result_ttl": Annotated[str | None, _option("--result-ttl", "How long its result is kept: 1d.", "TIME")],
}  # fmt: skip


def new_task(queue: str, type_: str, payload: str, given: Mapping[str, Any], **more: Any) -> NewTask:
    """The task of these options. `given`: as the command line has them, by the names in OPTIONS. `more`: other fields
    of the task."""
    unique_key = given_text("--unique-key", given["unique_key"])
    if given["unique"] is not None and not unique_key:
        raise usage("Expected --unique-key with --unique, but there is none.")
    scope = parsed("--unique", options.one_of(UniqueScope), given["unique"])
    return NewTask(
        queue,
        type_,
        calls.json_arguments(_standard_input() if payload == "-" else payload),
        headers=JSON_HEADERS,
        priority=given["priority"],
        tenant=given_text("--tenant", given["tenant"]),
        max_attempts=given["max_attempts"],
        max_claims=given["max_claims"],
        retry=_retry(given),
        unique_key=unique_key,
        unique_scope=UniqueScope.UNTIL_DONE if scope is None else scope,
        limit_key=given_text("--limit-key", given["limit_key"]),
        timeout_ms=parsed("--task-timeout", times.duration_between_ms("1s", "30d"), given["task_timeout"]),
        ttl_ms=parsed("--ttl", times.duration_between_ms("1s", "366d"), given["ttl"]),
        result_ttl_ms=parsed("--result-ttl", times.duration_between_ms("0", "3660d"), given["result_ttl"]),
        **more,
    )


def _retry(given: Mapping[str, Any]) -> RetryPolicy | None:
    """None if nothing of it is given: all as the queue says."""
    policy = RetryPolicy(
        shape=parsed("--retry-shape", options.one_of(RetryShape), given["retry_shape"]),
        base_ms=parsed("--retry-base", _PAUSE, given["retry_base"]),
        factor=parsed("--retry-factor", options.number(1, 100), given["retry_factor"]),
        cap_ms=parsed("--retry-cap", _PAUSE, given["retry_cap"]),
        jitter=parsed("--retry-jitter", options.number(0, 1), given["retry_jitter"]),
        non_retryable=tuple(given["non_retryable"] or ()),
    )
    if policy.base_ms is not None and policy.cap_ms is not None and policy.base_ms > policy.cap_ms:
        raise usage(
            f"Expected --retry-base of at most --retry-cap, but got {given['retry_base']} and {given['retry_cap']}."
        )
    return None if policy == RetryPolicy() else policy


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise usage("Expected JSON in UTF-8, but it is in another encoding.") from None
