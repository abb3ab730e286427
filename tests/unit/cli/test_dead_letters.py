"""`dlq …`: what is listed, asked, sent and reported."""

import io
import os
import time
import uuid
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from holdfast.proto.v1 import tasks_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import Refusal, ScriptedServer

DONE = pb.DeadLetterOutcome(done=pb.DeadLetterDone())
NOT_DEAD = pb.DeadLetterOutcome(rejection=pb.Rejection(reason="NOT_DEAD", message="It is READY."))
UNKNOWN = pb.DeadLetterOutcome(rejection=pb.Rejection(reason="TASK_NOT_FOUND", message="There is none."))

VERBS = ("retry", "discard")


def letter_id(number: int) -> str:
    return str(uuid.UUID(int=number))


def letter(number: int) -> pb.TaskInfo:
    return pb.TaskInfo(
        task_id=letter_id(number),
        state=pb.TASK_STATE_DEAD,
        queue="mail",
        task=pb.TaskSpec(queue="mail", type="welcome", payload=b"secret"),
        changed_at_ms=1_893_553_445_678,
        dead_reason="ATTEMPTS_SPENT",
        last_error=pb.TaskError(type="ValueError", message="\x1b[31mno\nsecond line"),
    )


class DeadQueue:
    """A queue of dead letters in which retried tasks die again at once."""

    def __init__(self, server: ScriptedServer, letters: int) -> None:
        self.ids = list(range(letters))
        self.retried: list[str] = []
        server.on("QueueStats", self._stats)
        server.on("ListDeadLetters", self._page)
        server.on("RetryDeadLetters", self._retry)
        server.on("DiscardDeadLetters", self._retry)

    def _stats(self, request: Any) -> pb.QueueStatsResponse:
        counts = pb.QueueCounts(queue="mail", dead=len(self.ids))
        return pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(counts=counts)])

    def _page(self, request: Any) -> pb.ListDeadLettersResponse:
        first = int(request.page_token or 0)
        found = self.ids[first : first + request.page_size]
        end = first + len(found)
        more = str(end) if end < len(self.ids) else ""
        return pb.ListDeadLettersResponse(tasks=[letter(number) for number in found], next_page_token=more)

    def _retry(self, request: Any) -> pb.RetryDeadLettersResponse:
        self.retried += request.task_ids
        self.ids += [uuid.UUID(task_id).int for task_id in request.task_ids]
        return pb.RetryDeadLettersResponse(outcomes=[DONE] * len(request.task_ids))


class Terminal(io.StringIO):
    """Somebody at a keyboard."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr("sys.stdin", Terminal(f"{text}\n"))


def test_ls_shows_when_and_why_each_died(cli: Cli) -> None:
    DeadQueue(cli.server, 3)
    assert cli.run("dlq", "ls", "mail", "--limit", "2") == 0
    header, _, *rows = cli.out.splitlines()
    assert header.split("   ")[0] == "task"
    assert [row.split()[0] for row in rows] == [letter_id(0), letter_id(1)]
    for words in ("welcome", "2030-01-02 03:04:05", "ATTEMPTS_SPENT", "ValueError: \\x1b[31mno"):
        assert words in rows[0]
    assert "second line" not in cli.out
    assert "There are more" in cli.err
    printed = cli.json("dlq", "ls", "mail")
    assert (printed["queue"], printed["more"], len(printed["dead_letters"])) == ("mail", False, 3)
    assert "secret" not in cli.out
    assert not any(key.startswith("payload") for key in printed["dead_letters"][0])


def test_ls_of_a_queue_without_dead_letters(cli: Cli) -> None:
    DeadQueue(cli.server, 0)
    assert cli.run("dlq", "ls", "mail") == 0
    assert cli.out == "Queue mail has no dead letters.\n"


def test_ls_of_an_unknown_queue(cli: Cli) -> None:
    missing = pb.QueueStatsOutcome(rejection=pb.Rejection(reason="QUEUE_NOT_FOUND", message="There is none."))
    cli.server.on("ListDeadLetters", pb.ListDeadLettersResponse())
    cli.server.on("QueueStats", pb.QueueStatsResponse(outcomes=[missing]))
    assert cli.run("dlq", "ls", "mail") == 5
    assert "holdfast queue ls" in cli.err
    assert cli.run("dlq", "retry", "--all", "--queue", "mail", "--yes") == 5


def test_show_has_the_payload(cli: Cli) -> None:
    cli.server.on("GetDeadLetter", pb.GetDeadLetterResponse(task=letter(1)))
    assert cli.run("dlq", "show", letter_id(1)) == 0
    assert "secret" in cli.out
    assert "\x1b" not in cli.out
    assert cli.json("dlq", "show", letter_id(1))["dead_reason"] == "ATTEMPTS_SPENT"


@pytest.mark.parametrize(("verb", "word", "method"), [
    ("retry", "retried", "RetryDeadLetters"), ("discard", "discarded", "DiscardDeadLetters")
])  # fmt: skip
def test_named_letters(cli: Cli, verb: str, word: str, method: str) -> None:
    cli.server.on(method, lambda request: pb.RetryDeadLettersResponse(outcomes=[DONE] * len(request.task_ids)))
    assert cli.run("dlq", verb, letter_id(1), "--yes") == 0
    assert cli.out == f"1 dead letter {word}.\n"
    assert cli.run("dlq", verb, letter_id(1), letter_id(2), letter_id(1), "--json", "--yes") == 0
    assert cli.json_out() == {"queue": None, word: 2, "failed": 0, "unknown": 0, "failures": []}
    assert list(cli.server.requests[method][1].task_ids) == [letter_id(1), letter_id(2)], "each once"


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [([UNKNOWN], 5), ([NOT_DEAD], 1), ([DONE, UNKNOWN], 1), ([NOT_DEAD, UNKNOWN], 5)],
    ids=["unknown", "not dead", "in part", "none of two"],
)
def test_what_could_not_be_retried(cli: Cli, outcomes: list[pb.DeadLetterOutcome], code: int) -> None:
    cli.server.on("RetryDeadLetters", pb.RetryDeadLettersResponse(outcomes=outcomes))
    ids = [letter_id(number) for number in range(len(outcomes))]
    assert cli.run("dlq", "retry", *ids) == code
    failed = [position for position, outcome in enumerate(outcomes) if outcome is not DONE]
    assert f"{len(failed)} failed" in cli.out
    for index in failed:
        assert f"error: Task {ids[index]}: " in cli.err
    assert cli.run("dlq", "retry", *ids, "--json") == code
    assert [failure["task_id"] for failure in cli.json_out()["failures"]] == [ids[position] for position in failed]


@pytest.mark.parametrize(("verb", "word"), [("retry", "retried"), ("discard", "discarded")])
def test_all_of_a_queue_is_each_letter_once(cli: Cli, verb: str, word: str) -> None:
    queue = DeadQueue(cli.server, 2_345)
    assert cli.run("dlq", verb, "--all", "--queue", "mail", "--yes") == 0
    assert cli.out == f"2,345 dead letters of queue mail {word}.\n"
    assert queue.retried == [letter_id(number) for number in range(2_345)], "also those that died again, once only"


def test_named_letters_are_discarded_only_after_a_yes(cli: Cli, answers: Callable[[str], None]) -> None:
    cli.server.on("DiscardDeadLetters", pb.DiscardDeadLettersResponse(outcomes=[DONE]))
    answers("n")
    assert cli.run("dlq", "discard", letter_id(1)) == 1
    assert "Discard the dead letter named? There is no way back." in cli.err
    assert not cli.server.requests["DiscardDeadLetters"]
    answers("y")
    assert cli.run("dlq", "discard", letter_id(1)) == 0
    cli.server.on("RetryDeadLetters", pb.RetryDeadLettersResponse(outcomes=[DONE]))
    assert cli.run("dlq", "retry", letter_id(1)) == 0
    assert "?" not in cli.err, "a retry of a named letter does not ask"


def test_all_asks_first_and_names_count_and_queue(cli: Cli, answers: Callable[[str], None]) -> None:
    queue = DeadQueue(cli.server, 12)
    answers("n")
    assert cli.run("dlq", "discard", "--all", "-q", "mail") == 1
    assert "Discard all 12 dead letters of queue mail? There is no way back." in cli.err
    assert "Nothing was changed" in cli.err
    assert cli.out == ""
    assert queue.retried == []
    answers("y")
    assert cli.run("dlq", "retry", "--all", "-q", "mail", "--json") == 0
    assert "Retry all 12 dead letters of queue mail?" in cli.err
    assert cli.json_out()["retried"] == 12


def test_all_refuses_where_nobody_can_be_asked(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = DeadQueue(cli.server, 12)
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert cli.run("dlq", "discard", "--all", "--queue", "mail") == 2
    assert "Expected --yes to discard all 12 dead letters of queue mail" in cli.err
    assert queue.retried == []


def test_all_of_a_queue_without_dead_letters(cli: Cli) -> None:
    DeadQueue(cli.server, 0)
    assert cli.run("dlq", "retry", "--all", "--queue", "mail") == 0
    assert cli.out == "Queue mail has no dead letters.\n"
    assert cli.json("dlq", "retry", "--all", "--queue", "mail")["retried"] == 0


def test_all_in_part(cli: Cli) -> None:
    DeadQueue(cli.server, 30)
    outcomes = [DONE] * 5 + [NOT_DEAD] * 25
    cli.server.instead("RetryDeadLetters", pb.RetryDeadLettersResponse(outcomes=outcomes))
    assert cli.run("dlq", "retry", "--all", "--queue", "mail", "--yes") == 1
    assert cli.out == "5 dead letters of queue mail retried, 25 failed.\n"
    assert "and 5 more like these" in cli.err


def test_all_says_how_far_it_got_when_the_server_goes(cli: Cli) -> None:
    DeadQueue(cli.server, 1_200)
    first = pb.DiscardDeadLettersResponse(outcomes=[DONE] * 500)
    cli.server.instead("DiscardDeadLetters", first, Refusal(grpc.StatusCode.UNAVAILABLE))
    assert cli.run("dlq", "discard", "--all", "--queue", "mail", "--yes", "--json") == 4
    assert cli.json_out() == {"queue": "mail", "discarded": 500, "failed": 0, "unknown": 500, "failures": []}
    assert cli.json_err()["error"]["reason"] == "CONNECTION_FAILED"


# ------------------------------------------------------------------------------------------------------- by a filter


class FilteredQueue:
    """A queue of 30 letters of which every third fits, in pages that may be empty."""

    def __init__(self, server: ScriptedServer) -> None:
        self.filters: list[pb.DeadLetterFilter] = []
        counts = pb.QueueCounts(queue="mail", dead=30)
        server.on("QueueStats", pb.QueueStatsResponse(outcomes=[pb.QueueStatsOutcome(counts=counts)]))
        server.on("ListDeadLetters", self._page)
        for verb in ("RetryDeadLetters", "DiscardDeadLetters"):
            server.on(verb, lambda request: pb.RetryDeadLettersResponse(outcomes=[DONE] * len(request.task_ids)))

    def _page(self, request: Any) -> pb.ListDeadLettersResponse:
        self.filters.append(request.filter)
        position = int(request.page_token or 0)
        fits = [letter(position)] if position % 3 == 0 and request.filter.type == "welcome" else []
        return pb.ListDeadLettersResponse(tasks=fits, next_page_token=str(position + 1) if position < 29 else "")


FITTING = [letter_id(number) for number in range(0, 30, 3)]


def test_ls_passes_on_the_filter_and_goes_through_empty_pages(cli: Cli) -> None:
    queue = FilteredQueue(cli.server)
    options = ["--type=welcome", "--tenant=acme", "--error=Timed out", "--reason=ttl-passed"]
    times = ["--since=2030-01-01T00:00:00Z", "--until=2030-01-02T00:00:00+01:00"]
    assert [
        dead_letter["task_id"] for dead_letter in cli.json("dlq", "ls", "mail", *options, *times)["dead_letters"]
    ] == FITTING
    assert queue.filters[-1] == pb.DeadLetterFilter(
        type="welcome", tenant="acme", error="Timed out", reason="TTL_PASSED", died_from_ms=1_893_456_000_000,
        died_before_ms=1_893_538_800_000,
    )  # fmt: skip
    assert cli.run("dlq", "ls", "mail", "--type", "other") == 0
    assert cli.out == "Queue mail has no dead letters that fit.\n"


def test_since_may_be_how_long_ago(cli: Cli) -> None:
    queue = FilteredQueue(cli.server)
    before_ms = time.time_ns() // 1_000_000
    assert cli.run("dlq", "ls", "mail", "--since", "2h", "--until", "1h") == 0
    after_ms = time.time_ns() // 1_000_000
    [asked] = {(item.died_from_ms, item.died_before_ms) for item in queue.filters}
    assert before_ms - 7_200_000 <= asked[0] <= after_ms - 7_200_000
    assert asked[1] == asked[0] + 3_600_000


def test_all_that_fit_are_counted_before_it_asks(cli: Cli, answers: Callable[[str], None]) -> None:
    FilteredQueue(cli.server)
    answers("n")
    assert cli.run("dlq", "retry", "--all", "-q", "mail", "--type", "welcome") == 1
    assert "Retry the 10 dead letters of queue mail that fit?" in cli.err
    assert not cli.server.requests["RetryDeadLetters"]
    answers("y")
    assert cli.run("dlq", "retry", "--all", "-q", "mail", "--type", "welcome") == 0
    assert cli.out == "10 dead letters of queue mail retried.\n"
    [request] = cli.server.requests["RetryDeadLetters"]
    assert list(request.task_ids) == FITTING
    assert cli.run("dlq", "retry", "--all", "-q", "mail", "--type", "other") == 0
    assert cli.out == "Queue mail has no dead letters that fit.\n"


@pytest.mark.parametrize("verb", ["retry", "discard"])
def test_a_dry_run_changes_nothing_and_does_not_ask(cli: Cli, verb: str) -> None:
    FilteredQueue(cli.server)
    assert cli.run("dlq", verb, "--all", "-q", "mail", "--type", "welcome", "--dry-run") == 0
    word = {"retry": "retried", "discard": "discarded"}[verb]
    assert cli.out == f"10 dead letters of queue mail would be {word}.\n"
    assert cli.run("dlq", verb, "--all", "-q", "mail", "--dry-run", "--json") == 0
    nothing = {"queue": "mail", word: 0, "failed": 0, "unknown": 0, "failures": []}
    assert cli.json_out() == {**nothing, "dry_run": True, "found": 30}
    unknown = Refusal(grpc.StatusCode.NOT_FOUND, "TASK_NOT_FOUND", "There is none.")
    cli.server.on("GetDeadLetter", pb.GetDeadLetterResponse(task=letter(1)), unknown)
    assert cli.run("dlq", verb, letter_id(1), letter_id(2), "--dry-run") == 1
    assert cli.out == f"1 dead letter would be {word}, 1 failed.\n"
    assert f"Task {letter_id(2)}: There is none." in cli.err
    assert not cli.server.requests["RetryDeadLetters"] + cli.server.requests["DiscardDeadLetters"]


def test_a_discard_says_who_and_why(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli.server.on("DiscardDeadLetters", pb.DiscardDeadLettersResponse(outcomes=[DONE]))
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    monkeypatch.setattr("socket.gethostname", lambda: "desk")
    assert cli.run("dlq", "discard", letter_id(1), "--yes", "--note", "the campaign is over") == 0
    assert cli.run("dlq", "discard", letter_id(1), "--yes", "--by", "cron") == 0

    def nameless() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert cli.run("dlq", "discard", letter_id(1), "--yes") == 0
    reported = [(request.by, request.note) for request in cli.server.requests["DiscardDeadLetters"]]
    assert reported == [("ada@desk", "the campaign is over"), ("cron", ""), (f"uid-{os.getuid()}@desk", "")]


def test_discarded_lists_what_is_left_of_them(cli: Cli) -> None:
    discard = pb.Discard(
        task_id=letter_id(1), queue="mail", type="welcome", dead_reason="TTL_PASSED", died_at_ms=1,
        discarded_at_ms=1_893_553_445_678, by="ada@desk", note="\x1b[2Jover",
    )  # fmt: skip
    cli.server.on(
        "ListDiscards",
        lambda request: pb.ListDiscardsResponse(
            discards=[discard] * min(2, request.page_size), next_page_token="" if request.page_token else "more"
        ),
    )
    assert cli.run("dlq", "discarded", "mail", "-n", "3") == 0
    _, _, *rows = cli.out.splitlines()
    assert len(rows) == 3
    for words in (letter_id(1), "2030-01-02 03:04:05", "ada@desk", "TTL_PASSED", "\\x1b[2Jover"):
        assert words in rows[0]
    assert [(request.queue, request.page_size) for request in cli.server.requests["ListDiscards"]] == [
        ("mail", 3),
        ("mail", 1),
    ]
    printed = cli.json("dlq", "discarded", "-n", "1")
    assert (printed["queue"], printed["more"], printed["discards"][0]["by"]) == (None, True, "ada@desk")
    cli.server.instead("ListDiscards", pb.ListDiscardsResponse())
    assert cli.run("dlq", "discarded", "mail") == 0
    assert cli.out == "Nothing was discarded of queue mail.\n"


@pytest.mark.parametrize("option", ["--error", "--type", "--tenant", "--reason", "--since", "--until"])
@pytest.mark.parametrize("command", [["ls", "mail"], *([verb, "--all", "--queue", "mail", "--yes"] for verb in VERBS)])
def test_an_empty_filter_is_refused_and_not_taken_for_none(cli: Cli, command: list[str], option: str) -> None:
    """A script whose variable is not set would throw everything away."""
    assert cli.run("dlq", *command, option, "") == 2
    assert f"{option}: Expected" in cli.err
    assert not cli.server.requests
