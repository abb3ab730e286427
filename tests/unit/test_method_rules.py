"""Every method says what a caller needs: a new one without a rule is an error, and the docs have them all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.access.rights import Reach, Right
from holdfast.proto.v1.method_rules import RULES
from holdfast.router.methods import ALL
from tools import protogen

REPO = Path(__file__).resolve().parents[2]
PAGE = REPO / "docs" / "security.md"


def test_every_method_has_a_rule() -> None:
    assert {method.path for method in ALL} == RULES.keys()
    for path, (right, reach) in RULES.items():
        assert right == "any" or right in list(Right), path
        assert reach in list(Reach), path
        assert (right == "any") == (reach == Reach.ROUTES), f"{path}: any right is enough for routes only"


def test_a_method_without_a_rule_fails_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `make check` runs it, over all .proto files and one more."""
    for path in protogen.PROTO_ROOT.rglob("*.proto"):
        copy = tmp_path / path.relative_to(protogen.PROTO_ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    (tmp_path / "holdfast/proto/v1/more.proto").write_text(
        'syntax = "proto3";\npackage holdfast.proto.v1;\nmessage Nothing {}\n'
        "service More {\n  rpc DoAnything(Nothing) returns (Nothing);\n}\n"
    )
    program = (
        "import sys; from pathlib import Path; from tools import protogen; "
        "protogen.PROTO_ROOT = Path(sys.argv[1]); sys.argv = ['protogen', '--verify']; sys.exit(protogen.main())"
    )
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], cwd=REPO, env=os.environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert found.returncode == 1
    assert "More.DoAnything" in found.stderr
    assert "option (rule)" in found.stderr


def table() -> str:
    """Of the page: what is printed there."""
    rows = ["| call | right | about |", "|---|---|---|"]
    for path, (right, reach) in RULES.items():
        service, name = path.rpartition(".")[2].split("/")
        rows.append(f"| `{service}.{name}` | {right} | {reach} |")
    return "\n".join(rows)


def test_the_page_on_security_has_all_of_them() -> None:
    assert table() in PAGE.read_text(), f"put this into docs/security.md:\n{table()}"
