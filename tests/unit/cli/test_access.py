"""`holdfast access`: rules of a file, and of a cluster while others change them."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import grpc
import pytest

from holdfast.access.documents import from_json
from holdfast.access.identities import of_token
from holdfast.access.permits import decide
from holdfast.access.rights import Right
from holdfast.access.tokens import is_secret_of, split_token
from holdfast.cli.main import main
from holdfast.cli.problems import ExitCode
from holdfast.proto.v1 import cluster_pb2 as pb
from holdfast.proto.v1 import tasks_pb2
from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import Refusal, ScriptedServer

RULES: dict[str, Any] = {
    "roles": {
        "admin": {"rights": ["administer"], "queues": ["*"]},
        "mailer": {"rights": ["enqueue"], "queues": ["mail"]},
    },
    "grants": {"token:root": ["admin"]},
    "tokens": {},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "access.json"
    path.write_text(json.dumps(RULES))
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    return code, *capsys.readouterr()


def test_a_token_is_made_in_a_file_and_taken_back(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "access", "token", "create", "shop", "--role", "mailer", "--file", str(file))
    assert code == ExitCode.OK
    found = split_token(out.strip())
    assert found is not None, "nothing but the token is on standard output"
    policy = from_json(file.read_bytes())
    assert is_secret_of(found[1], policy.tokens[found[0]].hash)
    assert found[1] not in file.read_text()
    assert decide(policy, of_token("shop"), Right.ENQUEUE, "mail", "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    code, out, _ = run(capsys, "access", "token", "revoke", found[0], "--file", str(file), "--json")
    assert json.loads(out) == {"id": found[0], "revoked": True}
    assert not from_json(file.read_bytes()).tokens


def test_a_token_is_written_where_nobody_else_reads_it(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out_file = tmp_path / "t"
    arguments = ("--expires", "90d", "--file", str(file), "--out", str(out_file), "--json")
    code, out, _ = run(capsys, "access", "token", "create", "shop", "--role", "mailer", *arguments)
    assert code == ExitCode.OK
    shown = json.loads(out)
    assert shown["file"] == str(out_file)
    assert shown["roles"] == ["mailer"]
    assert shown["expires_at_ms"] > 0
    assert "token" not in shown
    assert split_token(out_file.read_text().strip()) is not None
    assert stat.S_IMODE(out_file.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("grant", "nobody", "admin"), "token:NAME"),
        (("grant", "token:a", "no-such-role"), "no role no-such-role"),
        (("revoke", "token:stranger"), "a grant that there is"),
        (("token", "create", "a b"), "letters"),
        (("token", "revoke", "0" * 16), "id of a token"),
    ],
)
def test_what_cannot_be_is_refused_and_changes_nothing(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    before = file.read_bytes()
    code, out, err = run(capsys, "access", *arguments, "--file", str(file))
    assert (code, out) == (ExitCode.REFUSED, "")
    assert says in err
    assert file.read_bytes() == before


def test_a_file_with_comments_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "access.toml"
    file.write_text("# mine\n[roles]\n")
    code, _, err = run(capsys, "access", "token", "create", "a", "--file", str(file))
    assert code == ExitCode.USAGE
    assert ".json" in err
    assert file.read_text().startswith("# mine")


def answer_rules(server: ScriptedServer, *versions: int) -> None:
    answers = [pb.GetAccessResponse(rules=json.dumps(RULES).encode(), version=version) for version in versions]
    server.on("GetAccess", *answers)


def test_rules_of_a_cluster_are_shown(cli: Cli) -> None:
    answer_rules(cli.server, 7)
    assert cli.json("access", "show")["grants"] == {"token:root": ["admin"]}
    assert cli.run("access", "show") == ExitCode.OK
    assert "mailer" in cli.out
    assert "Version 7" in cli.err


def test_a_change_is_made_again_if_somebody_was_faster(cli: Cli) -> None:
    answer_rules(cli.server, 7, 8)
    refused = Refusal(
        grpc.StatusCode.FAILED_PRECONDITION, "CHANGE_REFUSED", "Changed.", metadata={"why": "OTHER_VERSION"}
    )
    cli.server.on("SetAccess", refused, pb.SetAccessResponse(version=9))
    assert cli.json("access", "grant", "jwt:groups=ops", "admin") == {"subject": "jwt:groups=ops", "roles": ["admin"]}
    assert [request.version for request in cli.server.requests["SetAccess"]] == [7, 8]
    sent = from_json(cli.server.requests["SetAccess"][-1].rules)
    assert sent.grants["jwt:groups=ops"] == ("admin",)


def test_what_the_cluster_refuses_is_said(cli: Cli) -> None:
    answer_rules(cli.server, 7)
    code = grpc.StatusCode.FAILED_PRECONDITION
    cli.server.on("SetAccess", Refusal(code, "CHANGE_REFUSED", "Nobody.", metadata={"why": "NO_ADMINISTRATOR"}))
    assert (
        cli.json_error("access", "revoke", "token:root", code=ExitCode.REFUSED)["error"]["reason"] == "CHANGE_REFUSED"
    )


def test_rules_of_a_file_go_to_the_cluster(cli: Cli, file: Path) -> None:
    answer_rules(cli.server, 3)
    cli.server.on("SetAccess", pb.SetAccessResponse(version=4))
    assert cli.run("access", "set", str(file)) == ExitCode.USAGE, "nobody is there to be asked"
    assert cli.run("access", "set", str(file), "--yes") == ExitCode.OK
    assert cli.server.requests["SetAccess"][0].version == 3
    assert cli.run("access", "clear", "--yes") == ExitCode.OK
    assert cli.server.requests["SetAccess"][-1].rules == b""


def test_a_command_brings_the_token_of_a_file(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "of the environment")
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", "")
    (tmp_path / "token").write_text("hft_mine\n")
    cli.server.on("ListQueues", tasks_pb2.ListQueuesResponse())
    assert cli.run("queue", "ls", "--token-file", str(tmp_path / "token")) == ExitCode.OK
    assert cli.server.tokens == ["Bearer hft_mine"]
    assert os.environ["HOLDFAST_TOKEN_FILE"] == str(tmp_path / "token")


def test_a_token_file_that_is_not_there_is_said(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN_FILE", "/nowhere/token")
    assert cli.json_error("queue", "ls", code=ExitCode.USAGE)["error"]["reason"] == "NO_TOKEN"
