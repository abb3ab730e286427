"""`holdfast cluster up` and `cluster down`: a cluster on this machine."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from holdfast.cli.main import main


class _LocalError(Exception):
    def __init__(self, reason: str, sentence: str, hint: str = "", log_lines: tuple[str, ...] = ()) -> None:
        super().__init__(sentence)
        self.reason, self.hint, self.log_lines = reason, hint, log_lines


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stands for what starts processes."""
    fake = ModuleType("holdfast.cluster.local.cluster")
    vars(fake).update(LocalError=_LocalError, Desired=dict)
    monkeypatch.setitem(sys.modules, "holdfast.cluster.local.cluster", fake)
    return fake


def running(directory: Path, *, is_new: bool, router_port: int = 7500) -> Any:
    from holdfast.cluster.local.cluster import LocalCluster, Server

    servers = [
        Server(name, f"127.0.0.1:{port}", None, 100 + port, directory / f"{name}.log", is_new)
        for name, port in (("etcd", 1), ("n1", 2), ("router", router_port))
    ]
    return LocalCluster(directory, tuple(servers), 4, 1)


def test_up_passes_on_what_was_asked_and_prints_how_to_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def up(directory: Path, desired: Any, administrator: Any, *, timeout_s: float, say: Callable[[str], None]) -> Any:
        asked.append((directory, desired, timeout_s))
        say("etcd started.")
        return running(directory, is_new=len(asked) == 1)

    monkeypatch.setattr("holdfast.cluster.local.cluster.up", up)
    arguments = ["cluster", "up", "--nodes", "5", "--dir", str(tmp_path), "--router-port", "7500", "--timeout", "1m"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert "The cluster is up." in out
    assert "holdfast cluster status --address 127.0.0.1:7500" in out
    assert f"holdfast cluster down --dir {tmp_path}" in out
    assert "etcd started." in err
    [(directory, desired, timeout_s)] = asked
    assert (directory, desired.nodes, desired.shards, desired.router_port, timeout_s) == (tmp_path, 5, None, 7500, 60.0)
    assert main(arguments) == 0
    assert "The cluster runs already." in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["address"] == "127.0.0.1:7500"
    assert err == ""


@pytest.mark.parametrize(
    ("variable", "port", "flag"),
    [
        (None, 7400, ""),
        (None, 7500, " --address 127.0.0.1:7500"),
        ("localhost:7400", 7400, ""),
        ("127.0.0.1:7500", 7500, ""),
        ("localhost:7500", 7400, " --address 127.0.0.1:7400"),
        ("elsewhere:7400", 7400, " --address 127.0.0.1:7400"),
    ],
)
def test_what_up_prints_talks_to_the_cluster_that_is_up(
    variable: str | None, port: int, flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if variable is not None:
        monkeypatch.setenv("HOLDFAST_ADDRESS", variable)
    report = running(tmp_path, is_new=True, router_port=port)
    monkeypatch.setattr("holdfast.cluster.local.cluster.up", lambda *given, **more: report)
    assert main(["cluster", "up", "--dir", str(tmp_path)]) == 0
    assert f"Look at it:   holdfast cluster status{flag}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("reason", "code"), [("NO_ETCD", 3), ("SERVER_ENDED", 1)])
def test_up_that_fails_shows_the_end_of_the_log(
    local: ModuleType, reason: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def up(*given: Any, **more: Any) -> Any:
        raise _LocalError(reason, "n2 has ended.", "See its log.", ("line one", "it has no disk"))

    vars(local)["up"] = up
    assert main(["cluster", "up", "--dir", str(tmp_path)]) == code
    err = capsys.readouterr().err
    assert err.index("it has no disk") < err.index("error: n2 has ended.")
    assert "See its log." in err
    assert main(["cluster", "up", "--dir", str(tmp_path), "--json"]) == code
    assert json.loads(capsys.readouterr().err)["error"]["reason"] == reason


def test_down_of_nothing_is_no_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", "down", "--dir", str(tmp_path / "none")]) == 0
    assert "There is no cluster in" in capsys.readouterr().out
    assert main(["cluster", "down", "--dir", str(tmp_path), "--purge", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"dir": str(tmp_path)}
