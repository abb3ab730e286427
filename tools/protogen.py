"""Generate the Python code of every .proto file, or verify that the committed code is what protoc would write.

    python tools/protogen.py            # regenerate in place
    python tools/protogen.py --verify   # fail on a difference, change nothing

Only messages are generated: method paths come from the descriptors, so there is no *_pb2_grpc module.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

PROTO_ROOT = Path(__file__).resolve().parent.parent / "proto"


def generate(out_dir: Path) -> None:
    """Run protoc over all .proto files; the output tree under out_dir mirrors PROTO_ROOT."""
    sources = sorted(path.relative_to(PROTO_ROOT).as_posix() for path in PROTO_ROOT.rglob("*.proto"))
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I."]
    command += [f"--python_out={out_dir}", f"--pyi_out={out_dir}", *sources]
    subprocess.run(command, cwd=PROTO_ROOT, check=True)


def generated_files(root: Path) -> dict[str, bytes]:
    """Relative path -> content of everything protoc writes."""
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*_pb2*.py*") if path.is_file()}


def differences(committed: dict[str, bytes], fresh: dict[str, bytes]) -> list[str]:
    """One line per file that is missing, stale or left over."""
    lines = []
    for name in sorted(committed.keys() | fresh.keys()):
        if name not in committed:
            lines.append(f"proto/{name}: missing")
        elif name not in fresh:
            lines.append(f"proto/{name}: no .proto file makes it any more")
        elif committed[name] != fresh[name]:
            lines.append(f"proto/{name}: out of date")
    return lines


def verify() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh = generated_files(Path(scratch))
    committed = {name: data for name, data in generated_files(PROTO_ROOT).items() if not name.endswith(".pyc")}
    problems = differences(committed, fresh)
    for line in problems:
        print(line, file=sys.stderr)
    if problems:
        print("Generated code differs from the .proto files: run `make proto` and commit the result.", file=sys.stderr)
    return 1 if problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate or verify the protobuf code.")
    parser.add_argument("--verify", action="store_true", help="fail if the committed code is out of date")
    if parser.parse_args().verify:
        return verify()
    generate(PROTO_ROOT)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
