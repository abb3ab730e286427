"""Runs commands in the test's own process and keeps what they printed."""

import json
from typing import Any

import pytest
import typer.main

from holdfast.cli.commands.root import make_app
from holdfast.cli.main import main
from tests.unit.client.scripted_server import ScriptedServer


def commands() -> list[str]:
    """All commands that there are, as they are typed."""

    def below(command: Any, prefix: str) -> list[str]:
        parts = getattr(command, "commands", None)
        if parts is None:
            return [prefix]
        return [item for name, part in parts.items() for item in below(part, f"{prefix} {name}".strip())]

    return below(typer.main.get_command(make_app()), "")


class Cli:
    """Commands against one server, usually a scripted one."""

    def __init__(self, server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
        self.server = server
        self._capsys = capsys
        self.out = ""
        self.err = ""

    def run(self, *arguments: str) -> int:
        code = main([*arguments, "--address", self.server.address])
        self.out, self.err = self._capsys.readouterr()
        return code

    def json_out(self) -> dict[str, Any]:
        [line] = self.out.splitlines()
        value: dict[str, Any] = json.loads(line)
        return value

    def json_err(self) -> dict[str, Any]:
        [line] = self.err.splitlines()
        value: dict[str, Any] = json.loads(line)
        return value
