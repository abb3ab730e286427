"""The command line itself: help, wrong usage, versions, and how server commands are started."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main

from holdfast.cli.commands import root
from holdfast.cli.main import main
from holdfast.cli.problems import EXIT_CODE_MEANINGS, ExitCode
from holdfast.cli.times import (
    duration_ms,
    instant_ms,
    rate_per_second,
    shown_duration,
    shown_instant,
    shown_local,
    shown_rate,
    timeout_s,
    zone_of,
)
from tests.unit.cli.cli_runner import commands

COMMANDS = [command.split() for command in (*commands(), "workers")]  # which is one, and a group


@pytest.mark.parametrize("word", sorted({word for words in root.FILES.values() for word in words}))
def test_a_command_is_found_in_the_files_that_are_said_to_have_it(word: str) -> None:
    """They are the only ones that are loaded for it, so another process must look: here all of them are."""
    program = (
        "import typer.main; from holdfast.cli.commands import root;"
        f"files = [file for file, words in root.FILES.items() if {word!r} in words];"
        f"found = typer.main.get_command(root.make_app(files)).commands[{word!r}];"
        "print(*sorted(getattr(found, 'commands', ())))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    whole: Any = typer.main.get_command(root.make_app()).commands[word]  # type: ignore[attr-defined]
    assert done.stdout.split() == sorted(getattr(whole, "commands", ()))


def test_no_file_with_commands_is_forgotten() -> None:
    folder = Path(root.__file__).parent
    having = {path.stem for path in folder.glob("*.py") if "def add_to(app: typer.Typer)" in path.read_text()}
    assert having == set(root.FILES)


def error_of(capsys: pytest.CaptureFixture[str]) -> str:
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_exit_codes(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == ExitCode.OK
    text = capsys.readouterr().out
    typed = f"holdfast {' '.join(command)}"
    assert typed in text.partition("Examples:")[2], f"{typed} needs epilog=epilog(...) with an example"
    assert "--json" in text, f"{typed} needs the option Json of commands/shared.py"
    codes = " ".join(text.partition("Exit codes:")[2].split())
    for code, meaning in EXIT_CODE_MEANINGS.items():
        assert f"{code:d} {meaning}" in codes


@pytest.mark.parametrize(
    "command",
    [
        [], ["task"], ["queue"], ["dlq"], ["shard"], ["enqueue"], ["bench"], ["schedule", "put"], ["dlq", "retry"],
        ["cluster"], ["node"], ["cluster", "status"], ["queue", "set"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_help_fits_a_narrow_terminal(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    assert main([*command, "--help"]) == ExitCode.OK
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 60


def test_help_shows_where_the_address_comes_from(capsys: pytest.CaptureFixture[str]) -> None:
    main(["task", "get", "--help"])
    text = capsys.readouterr().out
    assert "HOLDFAST_ADDRESS" in text
    assert "localhost:7400" in text


def test_without_arguments_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.USAGE
    out, err = capsys.readouterr()
    assert "holdfast dev" in out + err
    assert "error" not in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope"], "No such command 'nope'"),
        (["enqueue", "mail"], "Missing argument 'TYPE'"),
        (["enqueue", "mail", "welcome", "--colour", "red"], "--colour"),
        (["enqueue", "mail", "welcome", "--priority", "10"], "--priority"),
        (["enqueue", "mail", "welcome", "--max-attempts", "0"], "--max-attempts"),
        (["enqueue", "mail", "welcome", "{"], "Expected JSON"),
        (["enqueue", "mail", "welcome", ""], "Expected JSON"),
        (["enqueue", "mail", "welcome", "NaN"], "NaN is not a JSON number"),
        (["enqueue", "mail", "welcome", '"\ud800"'], "UTF-8"),
        (["enqueue", "mail", "welcome", "[" * 100_000], "nested too deeply"),
        (["enqueue", "mail", "welcome", "--delay", "5"], "--delay: Expected a duration"),
        (["enqueue", "mail", "welcome", "--run-at", "2030-01-01T00:00:00"], "--run-at: Expected a time with its zone"),
        (["enqueue", "mail", "welcome", "--run-at", "2030-01-01T00:00:00Z", "--delay", "5m"], "at most one"),
        (["enqueue", "mail", "welcome", "--request-id-ttl", "1h"], "Expected --request-id with"),
        (["enqueue", "mail", "welcome", "--request-id=r", "--request-id-ttl", "x"], "--request-id-ttl: Expected a dur"),
        (["task", "wait"], "Missing argument 'ID"),
        (["task", "wait", "x", "--timeout", "soon"], "--timeout"),
        (["task", "wait", "x", "--timeout", "0s"], "between 1ms and 366d"),
        (["task", "cancel"], "Missing argument 'ID"),
        (["dlq", "retry"], "there is neither"),
        (["dlq", "retry", "x", "--all", "--queue", "q"], "either ids or --all"),
        (["dlq", "discard", "--all"], "Expected --queue with --all"),
        (["dlq", "discard", "x", "--queue", "q"], "Expected --all with --queue"),
        (["dlq", "ls", "q", "--limit", "0"], "--limit"),
        (["enqueue", "mail", "welcome", "--task-timeout", "0s"], "--task-timeout: Expected a duration from 1s to 30d"),
        (["enqueue", "mail", "welcome", "--ttl", "-5s"], "--ttl: Expected a duration"),
        (["enqueue", "mail", "welcome", "--retry-factor", "nan"], "--retry-factor: Expected a number from 1 to 100"),
        (["enqueue", "mail", "welcome", "--retry-jitter", "-0.1"], "--retry-jitter: Expected a number from 0 to 1"),
        (["enqueue", "mail", "welcome", "--retry-shape", "round"], "--retry-shape: Expected one of exponential, lin"),
        (["enqueue", "mail", "welcome", "--retry-base=2s", "--retry-cap=1s"], "--retry-base of at most --retry-cap"),
        (["enqueue", "mail", "welcome", "--unique", "until-done"], "Expected --unique-key with --unique"),
        (["enqueue", "mail", "welcome", "--unique-key=k", "--unique", "ever"], "--unique: Expected one of until-done"),
        (["task", "update", "x"], "Expected --priority, --delay or --run-at"),
        (["task", "update", "x", "--priority", "10"], "--priority"),
        (["task", "update", "x", "--delay", "-1s"], "--delay: Expected a duration"),
        (["task", "update", "x", "--delay=1s", "--run-at=2030-01-01T00:00:00Z"], "at most one"),
        (["queue", "set", "q", "--rate", "0/s"], "--rate: Expected a rate from 0.001/s"),
        (["queue", "set", "q", "--retry-factor", "NaN"], "--retry-factor: Expected a number from 1 to 100"),
        (["queue", "set", "q", "--oldest-share", "101"], "--oldest-share: Expected a whole number from 0 to 100"),
        (["queue", "set", "q", "--concurrency", "0"], "--concurrency: Expected a whole number from 1 to"),
        (["queue", "set", "q", "--tenant", "acme"], "--tenant: Expected NAME:SETTING"),
        (["queue", "set", "q", "--tenant", "acme:weight=0"], "--tenant: weight: Expected a whole number from 1 to 100"),
        (["queue", "set", "q", "--tenant", "a:weight=1", "--tenant", "a:weight=2"], "'a' is there twice"),
        (["queue", "set", "q", "--reset", "tenant-weight:a", "--tenant", "a:weight=2"], "either set or reset"),
        (["queue", "set", "q", "--reset", "tenant-height:a"], "Expected one of"),
        (["queue", "set", "q", "--reset", "tenant-weight:"], "Expected one of"),
        (["schedule", "put", "n", "--queue", "q", "--type", "t"], "either --cron or --every, but there is neither"),
        (["schedule", "put", "n", "-q", "q", "--type", "t", "--cron=@daily", "--every=1s"], "but both are given"),
        (["schedule", "put", "n", "--type", "t", "--every=1s"], "--queue"),
        (["schedule", "put", "n", "-q", "q", "--type=t", "--every=0s"], "--every: Expected a duration from 1s to 366d"),
        (["schedule", "put", "n", "-q", "q", "--type=t", "--every=1.5s"], "--every: Expected whole seconds"),
        (
            ["schedule", "put", "n", "-q", "q", "--type=t", "--every=9s", "--catch-up=two"],
            "--catch-up: Expected one of",
        ),
        (
            ["schedule", "put", "n", "-q", "q", "--type=t", "--every=9s", "--zone="],
            "--zone: Expected a text, but it is",
        ),
        (["schedule", "next", "@daily", "--zone", ""], "--zone: Expected a text, but it is empty"),
        (["schedule", "ls", "--queue", ""], "--queue: Expected a text, but it is empty"),
        (["schedule", "next", "@daily", "-n", "0"], "-n"),
        (["schedule", "next", "nightly", "-q", "q", "--zone", "UTC"], "a schedule has its own zone"),
        (["dlq", "ls", "q", "--since", "soon"], "--since: Expected how long ago"),
        (["dlq", "ls", "q", "--since", "1h", "--until", "2h"], "Expected --since before --until"),
        (["dlq", "ls", "q", "--reason", "boredom"], "--reason: Expected one of ATTEMPTS_SPENT"),
        (["dlq", "retry", "x", "--type", "t"], "Expected --all --queue QUEUE with a filter"),
        (["dlq", "discard", "x", "--note", "n" * 257], "--note: Expected at most 256 bytes"),
        (["bench", "--tasks", "0"], "--tasks"),
        (["bench", "--payload-bytes", "7"], "--payload-bytes"),
        (["worker", "tasks"], "Expected MODULE:APP"),
        (["worker", "tasks:app", "-q", "mail:0"], "--queue: Expected QUEUE or QUEUE:N"),
        (["worker", "tasks:app", "-q", "mail:1001"], "--queue: Expected QUEUE or QUEUE:N with N from 1 to 1,000"),
        (["worker", "tasks:app", "-q", "a", "-q", "a:2"], "'a' is there twice"),
        (["worker", "tasks:app", "-c", "0"], "--concurrency"),
        (["worker", "tasks:app", "--log-level", "loud"], "--log-level: Expected one of debug"),
        (["task", "get", "x", "--address", "localhost"], "host:port"),
        (["task", "get", "x", "--address", "http://localhost:7400"], "host:port"),
        (["queue", "ls", "--address", "h1:7401,h2"], "but got 'h2' in 'h1:7401,h2'"),
        (["shard", "hash", "x"], "SHARD"),
        (["shard", "hash", "--", "-1"], "SHARD"),
        (["shard", "transfer", "0"], "Missing argument 'NODE'"),
        (["enqueue", "mail", "welcome", "--request-id", ""], "--request-id: Expected a text, but it is empty"),
        (["enqueue", "mail", "welcome", "--tenant", ""], "--tenant: Expected a text, but it is empty"),
        (["enqueue", "mail", "welcome", "--unique-key", ""], "--unique-key: Expected a text, but it is empty"),
        (["enqueue", "mail", "welcome", "--limit-key", ""], "--limit-key: Expected a text, but it is empty"),
        (["schedule", "put", "n", "-q=r", "--every=9s", "--type=t", "--tenant", ""], "--tenant: Expected"),
        (["schedule", "put", "n", "-q=r", "--every=9s", "--type=t", "--unique-key", ""], "--unique-key: Expected"),
        (["schedule", "put", "n", "-q=r", "--every=9s", "--type=t", "--limit-key", ""], "--limit-key: Expected"),
        (["schedule", "trigger", "n", "-q", "r", "--request-id", ""], "--request-id: Expected a text, but it is empty"),
        (["enqueue", "mail", "welcome", '"str"'], "Expected a JSON array or object"),
        (["enqueue", "mail", "welcome", "17"], "Expected a JSON array or object"),
        (["enqueue", "mail", "welcome", "null"], "Expected a JSON array or object"),
        (["enqueue", "mail", "welcome", "true"], "Expected a JSON array or object"),
        (["schedule", "put", "n", "-q=r", "--every=9s", "--type=t", "--args", '"x"'], "Expected a JSON array"),
        (["dlq", "discard", "x", "--yes", "--by", ""], "--by: Expected a text, but it is empty"),
        (["top", "--sort", "colour"], "--sort"),
        (["cluster", "init"], "--shards"),
        (["cluster", "init", "--shards", "0"], "--shards"),
        (["cluster", "init", "--shards", "4", "--wait", "soon"], "--wait"),
        (["cluster", "up", "--nodes", "10"], "--nodes"),
        (["node", "drain"], "Missing argument 'NAME'"),
        (["node", "drain", "n1"], "Expected --yes to move what node n1 holds; or --plan-only"),
        (["node", "drain", "n1", "--yes", "--plan-only"], "at most one of --plan-only and --yes"),
        (["shard", "move", "0", "--from", "n1"], "--to"),
        (["shard", "move", "x", "--from", "n1", "--to", "n2"], "SHARD"),
        (["queue", "set", "mail"], "Expected something to set"),
        (["queue", "set", "mail", "--retry-base", "soon"], "--retry-base: Expected a duration"),
        (["queue", "set", "mail", "--pin", "3,x"], "--pin: Expected numbers of shards"),
        (["queue", "set", "mail", "--pin", "3", "--spread", "2"], "at most one of --spread, --pin and --home"),
        (["queue", "set", "mail", "--reset", "colour"], "--reset: Expected one of max-attempts"),
        (["queue", "set", "mail", "--reset", "retry-base", "--retry-base", "1s"], "either set or reset"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == ExitCode.USAGE
    err = error_of(capsys)
    assert err.startswith("error: ")
    assert words in err.splitlines()[0]
    assert len(err.splitlines()) <= 2
    assert main([*arguments, "--json"]) == ExitCode.USAGE
    problem = json.loads(error_of(capsys))
    assert problem["exit_code"] == 2
    assert words in problem["error"]["message"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == ExitCode.OK
    assert capsys.readouterr().out.startswith("holdfast ")
    assert main(["version", "--json"]) == ExitCode.OK
    assert set(json.loads(capsys.readouterr().out)) == {"version", "python"}


Started = list[tuple[Path | None, dict[str, object], dict[str, object]]]
StandIn = Callable[..., Started]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """Puts a server in the place of a command's own, which ends with 7, or cannot be loaded; returns what it was
    started with."""

    def put(command: str, module: str = "holdfast.broker.main", missing: ModuleNotFoundError | None = None) -> Started:
        started: Started = []

        def run(config: Path | None, overrides: dict[str, object], **more: object) -> int:
            if missing is not None:
                raise missing
            started.append((config, overrides, {name: value for name, value in more.items() if value}))
            return 7

        server = ModuleType(module)
        vars(server)[f"run_{command}"] = run
        monkeypatch.setitem(sys.modules, module, server)
        return started

    return put


@pytest.mark.parametrize("command", ["dev", "broker"])
def test_a_server_command_passes_on_the_flags_that_were_given(command: str, stand_in: StandIn, tmp_path: Path) -> None:
    started = stand_in(command)
    flags = ["--host=0.0.0.0", "--port=0", "--ops-port=7503", "--log-level=debug", "--log-format=console", "--insecure"]
    given = {
        "data_dir": tmp_path, "host": "0.0.0.0", "port": 0, "ops_port": 7503, "log_level": "debug",
        "log_format": "console", "insecure": "on",
    }  # fmt: skip
    assert main([command]) == 7, "the server's exit code is the command's"
    assert main([command, "--data-dir", str(tmp_path), "--config", "h.toml", *flags]) == 7
    assert main([command, "--json"]) == 7
    assert started == [
        (None, {}, {}), (Path("h.toml"), given, {}), (None, {"log_format": "json"}, {"as_json": True})
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "flags", "given"),
    [
        ("router", [], {}),
        ("broker", ["--node-name=n7", "--zone=b"], {"node_name": "n7", "zone": "b"}),
    ],
)
def test_servers_of_a_cluster_get_the_flags_that_were_given(
    command: str, flags: list[str], given: dict[str, object], stand_in: StandIn
) -> None:
    started = stand_in(command, f"holdfast.{command}.main")
    flags = [*flags, "--etcd-endpoints=h1:2379,h2:2379", "--cluster-name=shop", "--port=0", "--config", "f.toml"]
    given |= {"etcd_endpoints": "h1:2379,h2:2379", "cluster_name": "shop", "port": 0}
    assert main([command, *flags]) == 7
    assert started == [(Path("f.toml"), given, {})]


def test_a_node_is_rebuilt_only_if_that_is_asked_for(stand_in: StandIn) -> None:
    started = stand_in("broker")
    assert main(["broker", "--config", "n2.toml"]) == 7
    assert main(["broker", "--config", "n2.toml", "--rebuild"]) == 7
    assert [more for _, _, more in started] == [{}, {"rebuild": True}]
    assert main(["dev", "--rebuild"]) == ExitCode.USAGE, "nobody else has what is in a group of one"


def test_a_missing_package_is_one_line_and_exit_code_3(stand_in: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in("dev", missing=ModuleNotFoundError("No module named 'rocksdict'", name="rocksdict.sub"))
    assert main(["dev"]) == ExitCode.MISSING_EXTRA
    [line] = error_of(capsys).splitlines()
    assert "'rocksdict'" in line
    assert "pip install 'holdfast-queue[server]'" in line
    assert main(["dev", "--json"]) == ExitCode.MISSING_EXTRA
    assert json.loads(error_of(capsys))["error"]["reason"] == "MISSING_EXTRA"


def test_a_fault_of_our_own_is_not_taken_for_a_missing_package(stand_in: StandIn) -> None:
    stand_in("dev", missing=ModuleNotFoundError("No module named 'holdfast.broker.typo'", name="holdfast.broker.typo"))
    with pytest.raises(ModuleNotFoundError):
        main(["dev"])


def test_exit_codes_never_change() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "OK": 0, "REFUSED": 1, "USAGE": 2, "MISSING_EXTRA": 3, "UNREACHABLE": 4, "NOT_FOUND": 5, "NO_RESULT": 6,
        "UNFINISHED": 7, "LAST_KNOWN": 8, "INTERRUPTED": 130, "PIPE_CLOSED": 141,
    }  # fmt: skip
    assert set(EXIT_CODE_MEANINGS) == set(ExitCode) - {ExitCode.PIPE_CLOSED}


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("500ms", 500), ("90s", 90_000), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000), ("1H 30M", None)],
)
def test_durations(text: str, expected_ms: int | None) -> None:
    if expected_ms is None:
        with pytest.raises(ValueError, match="Expected a duration"):
            duration_ms(text)
    else:
        assert duration_ms(text) == expected_ms


@pytest.mark.parametrize("text", ["", "5", "s", "-5s", "5 s", "5w", "5m-3s", "5ss", "1e3s", "٥s", "9" * 16 + "s"])
def test_what_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match="Expected a duration"):
        duration_ms(text)


@pytest.mark.parametrize("text", ["", "now", "2030-01-01", "2030-01-01T00:00:00", "2030-13-01T00:00:00Z"])
def test_what_is_not_an_instant(text: str) -> None:
    with pytest.raises(ValueError, match="Expected a time with its zone"):
        instant_ms(text)


@pytest.mark.parametrize(
    ("text", "per_second"), [("10/s", 10), ("90/m", 1.5), ("3.6/h", 0.001), ("1000000/s", 1_000_000), ("0.5/S", 0.5)]
)
def test_rates(text: str, per_second: float) -> None:
    assert rate_per_second(text) == per_second
    assert rate_per_second(shown_rate(per_second)) == pytest.approx(per_second)


def test_a_zone_that_this_machine_does_not_know_is_none() -> None:
    for name in ("Mars/Olympus", "../etc/passwd", "Europe", "\0", "x" * 1_000):
        assert zone_of(name) is None
    berlin = zone_of("Europe/Berlin")
    assert berlin is not None
    assert shown_local(instant_ms("2030-01-02T03:04:05Z"), berlin) == "Wed 2030-01-02 04:04:05 +01:00"
    new_york = zone_of("America/New_York")
    assert new_york is not None
    assert shown_local(instant_ms("2030-07-02T03:04:05Z"), new_york) == "Mon 2030-07-01 23:04:05 -04:00"
    assert shown_local(2**62, berlin) == f"{2**62} ms"


def test_instants_before_the_epoch_and_far_away_are_kept_as_they_are() -> None:
    assert instant_ms("1969-12-31T23:59:59.999Z") == -1
    assert shown_instant(-1) == "1969-12-31 23:59:59.999 UTC"
    assert shown_instant(2**62) == f"{2**62} ms"
    assert shown_instant(None) == "-"
    assert shown_duration(-5) == "-"


@pytest.mark.parametrize(
    ("text", "expected_s"), [("10", 10), ("0.5", 0.5), ("500ms", 0.5), ("1h30m", 5_400), (2.5, 2.5)]
)
def test_time_limits(text: str | float, expected_s: float) -> None:
    assert timeout_s(text) == expected_s


@pytest.mark.parametrize("text", ["", "-1", "0", "367d", "1e3", "soon", "inf", "nan"])
def test_what_is_not_a_time_limit(text: str) -> None:
    with pytest.raises(ValueError, match="Expected"):
        timeout_s(text)


@pytest.mark.parametrize(
    ("shell", "words"), [("bash", "complete -o default"), ("zsh", "#compdef"), ("fish", "complete --command")]
)
def test_completion_for_a_named_shell(shell: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--show-completion", shell]) == ExitCode.OK
    out = capsys.readouterr().out
    assert words in out
    assert "_HOLDFAST_COMPLETE" in out


def test_completion_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["--install-completion", "bash"]) == ExitCode.OK
    assert "installed" in capsys.readouterr().out
    assert ".bash_completions/holdfast.sh" in (tmp_path / ".bashrc").read_text()


def test_ctrl_c_while_the_command_is_loading_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("holdfast.cli.runner.run", interrupted)
    assert main(["version"]) == ExitCode.INTERRUPTED
    assert error_of(capsys) == ""
