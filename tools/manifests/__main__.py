"""`make render`: render every overlay and check it. `lint FILE` checks manifests of your own overlay."""

import argparse
import sys
from pathlib import Path

from tools.manifests.objects import load
from tools.manifests.rendering import OVERLAYS, RENDERED, KubectlError, render
from tools.manifests.rules import findings


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.manifests", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("render", help="write deploy/k8s/rendered anew")
    commands.add_parser("verify", help="say which of the rendered files are out of date")
    lint = commands.add_parser("lint", help="check rendered manifests; - reads standard input")
    lint.add_argument("files", nargs="+")
    given = parser.parse_args()
    if given.command == "lint":
        return lint_all({name: sys.stdin.read() if name == "-" else Path(name).read_text() for name in given.files})
    try:
        texts = {name: render(name) for name in OVERLAYS}
    except KubectlError as error:
        print(error, file=sys.stderr)
        return 1
    return verify(texts) if given.command == "verify" else write(texts)


def write(texts: dict[str, str]) -> int:
    for name, text in texts.items():
        (RENDERED / f"{name}.yaml").write_text(text, encoding="utf-8")
    return lint_all(texts)


def verify(texts: dict[str, str]) -> int:
    old = [name for name, text in texts.items() if (RENDERED / f"{name}.yaml").read_text(encoding="utf-8") != text]
    for name in old:
        print(f"deploy/k8s/rendered/{name}.yaml is out of date: run `make render`.", file=sys.stderr)
    return 1 if old else 0


def lint_all(texts: dict[str, str]) -> int:
    found = [f"{name}: {finding}" for name, text in texts.items() for finding in findings(load(text))]
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
