"""Rules of the house that a linter does not know. Import directions between packages are in pyproject.toml."""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from holdfast.broker.config import BrokerConfig
from holdfast.cluster.settings import ClusterSettings
from holdfast.rebalancer.config import RebalancerConfig
from holdfast.router.config import RouterConfig

REPO = Path(__file__).resolve().parents[2]
SOURCE_ROOTS = ("proto", "common", "client", "router", "broker")
OTHER_ROOTS = ("tests", "tools", "benchmarks", "jepsen-style")

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 600

# Each outside library has one importing file in a package, so that it can be replaced in one place.
ONE_IMPORTER = {
    "pysyncobj": {"broker/holdfast/raft/library.py"},
    "rocksdict": {"broker/holdfast/storage/rocksdb.py"},
    "structlog": {"common/holdfast/serving/logs.py"},
    "prometheus_client": {
        "broker/holdfast/broker/metrics.py", "router/holdfast/rebalancer/metrics.py",
        "common/holdfast/serving/metrics.py",
    },
    "starlette": {"common/holdfast/serving/ops.py"},
    "uvicorn": {"common/holdfast/serving/ops.py"},
    "uvloop": {"common/holdfast/common/loop.py"},
    "pydantic": {
        "broker/holdfast/broker/config.py", "router/holdfast/cluster/settings.py", "router/holdfast/router/config.py",
        "router/holdfast/rebalancer/config.py", "common/holdfast/serving/settings.py",
    },
    "cryptography": {
        "client/holdfast/backup/encryption.py",
        "client/holdfast/cli/certificates.py",
        "client/holdfast/client/_aead.py",
    },
    "obstore": {"client/holdfast/backup/s3.py"},
    "jwt": {"common/holdfast/serving/jwts.py"},
    "pydantic_core": {"common/holdfast/serving/settings.py"},
    "pydantic_settings": {"common/holdfast/serving/settings.py"},
}  # fmt: skip
# Packages in which gRPC has one importing file, or none; `grpc_health` and `grpc_reflection` count as gRPC.
GRPC_IMPORTER: dict[str, set[str]] = {
    "client/holdfast/client/": set(),
    "router/holdfast/router/": set(),
    "common/holdfast/transport/": {"common/holdfast/transport/grpc_channels.py"},
}
# Those of the command line; typer has a folder, because each group of commands is a file.
CLI_IMPORTERS = {"typer": "client/holdfast/cli/commands/", "rich": "client/holdfast/cli/output.py"}

# import-linter names what pure packages must not import; these lists are the stronger form: all that they may.
MACHINE_MAY_IMPORT = {
    "__future__", "abc", "bisect", "collections", "dataclasses", "enum", "functools", "hashlib", "heapq", "itertools",
    "math", "operator", "re", "struct", "types", "typing", "typing_extensions", "zlib",
}  # fmt: skip
CRON_MAY_IMPORT = MACHINE_MAY_IMPORT | {"calendar", "datetime", "zoneinfo"}

# Private names that tests may use of what they did not make: none of Holdfast. Of named tuples `_replace` is no private
# name, and the faults of the library of Raft are shown from inside.
PUBLIC_UNDERSCORED = {"_replace"}
INSIDE_THE_RAFT_LIBRARY = {"tests/unit/raft/library_players.py", "tests/unit/raft/test_library_faults.py"}
MAY_USE_PRIVATE = re.compile(
    r"(?<!\bself)(?<!\bcls)(?<!super\(\))\._[a-z]|[\"'._]_[a-z]\w*[\"']|import.* _[a-z]|^ +_\w+,$", re.I | re.M
)


def _is_generated(path: Path) -> bool:
    return "_pb2" in path.name


def _python_files(*roots: str) -> list[Path]:
    files = (path for root in roots for path in (REPO / root).rglob("*.py"))
    return sorted(path for path in files if not _is_generated(path))


def _name(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def _functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All below it. They are statements, so that expressions, which are most of a file, need not be looked at."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        for below in getattr(node, part, ()):
            if isinstance(below, ast.FunctionDef | ast.AsyncFunctionDef):
                yield below
            yield from _functions(below)


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Full names of the modules a file imports, also inside functions and TYPE_CHECKING blocks."""
    found: list[str] = []
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{_name(path)}:{node.lineno}: relative imports hide who depends on whom"
            assert node.module is not None
            found.append(node.module)
    return tuple(found)


def test_no_root_package_hides_the_other_source_roots() -> None:
    strays = [root for root in SOURCE_ROOTS if (REPO / root / "holdfast" / "__init__.py").exists()]
    assert strays == [], "holdfast is a namespace package: remove holdfast/__init__.py"


def test_a_package_that_lists_its_files_lists_them_all() -> None:
    forgotten = []
    for root in SOURCE_ROOTS:
        for init in (REPO / root).glob("**/__init__.py"):
            text = ast.get_docstring(ast.parse(init.read_text())) or ""
            if re.search(r"^\w+\.py\b", text, re.MULTILINE) and "a file per group" not in text:
                files = [path for path in init.parent.glob("*.py") if not path.name.startswith("__")]
                forgotten += [path for path in files if path.name not in text and f"`{path.stem}`" not in text]
    assert [str(path.relative_to(REPO)) for path in forgotten] == [], "say in __init__.py what they are"


def test_every_package_is_marked_as_typed() -> None:
    packages = [path.parent for root in SOURCE_ROOTS for path in (REPO / root / "holdfast").glob("*/__init__.py")]
    assert packages
    assert [_name(package) for package in packages if not (package / "py.typed").exists()] == []


def test_each_outside_library_has_one_importing_file() -> None:
    importers: dict[str, set[str]] = defaultdict(set)
    for path in _python_files(*SOURCE_ROOTS):
        for module in _imports(path):
            importers[module.partition(".")[0]].add(_name(path))
    for library, owners in ONE_IMPORTER.items():
        assert importers[library] <= owners, f"{library} may be imported by {sorted(owners)} only"
        packages = [owner.rpartition("/")[0] for owner in owners]
        assert len(set(packages)) == len(packages), f"{library} has two importing files in one package"
    grpc = importers["grpc"] | importers["grpc_health"] | importers["grpc_reflection"]
    for package, owners in GRPC_IMPORTER.items():
        assert {name for name in grpc if name.startswith(package)} == owners
    for library, owner in CLI_IMPORTERS.items():
        elsewhere = {name for name in importers[library] if not name.startswith(owner)}
        assert elsewhere == set(), f"{library} may be imported by {owner} only"


@pytest.mark.parametrize(("package", "allowed"), [("machine", MACHINE_MAY_IMPORT), ("cron", CRON_MAY_IMPORT)])
def test_pure_packages_import_only_pure_modules(package: str, allowed: set[str]) -> None:
    files = _python_files(f"broker/holdfast/{package}")
    assert files
    strays = [
        f"{_name(path)} imports {module}"
        for path in files
        for module in _imports(path)
        if module.partition(".")[0] not in allowed and not module.startswith(f"holdfast.{package}")
    ]
    assert strays == []


def test_what_the_light_client_shares_needs_the_standard_library_only_beside_its_loop() -> None:
    strays = [
        f"{_name(path)} imports {module}"
        for path in _python_files("common/holdfast/common")
        for module in _imports(path)
        if module.partition(".")[0] not in sys.stdlib_module_names | {"uvloop"}
        and not module.startswith("holdfast.common")
    ]
    assert strays == []


def test_private_names_of_the_raft_library_are_in_one_file() -> None:
    """Another release may rename any of them: then one file says so at import, and one file is changed."""
    naming = {_name(path) for path in _python_files("broker") if "_SyncObj__" in path.read_text(encoding="utf-8")}
    assert naming == ONE_IMPORTER["pysyncobj"]


@pytest.mark.parametrize("config", [BrokerConfig, RouterConfig, RebalancerConfig], ids=lambda config: config.__name__)
def test_every_setting_is_read_by_somebody(config: type[ClusterSettings]) -> None:
    source = "".join(path.read_text() for root in SOURCE_ROOTS for path in (REPO / root).glob("**/*.py"))
    read = set(re.findall(r"(?:config|settings|self)\.(?=([a-z][a-z_0-9]*))", source))
    assert config.model_fields.keys() - read == set(), "hand them to whoever needs them"


def _private_names(tree: ast.Module) -> Iterator[str]:
    """Used of what no class of the file defines, and where."""
    nodes = list(ast.walk(tree))
    own = set(PUBLIC_UNDERSCORED)
    for node in (below for item in nodes if isinstance(item, ast.ClassDef) for below in ast.walk(item)):
        match node:
            case ast.FunctionDef(name) | ast.AsyncFunctionDef(name) | ast.AnnAssign(ast.Name(name)):
                own.add(name)
            case ast.Attribute(ast.Name("self" | "cls"), name, ast.Store()):
                own.add(name)
    for node in nodes:
        match node:
            case ast.Attribute(ast.Name("self" | "cls") | ast.Call(ast.Name("super"))):
                continue  # also in a subclass that plants a fault: it may override, and use, what is protected
            case ast.Attribute(_, name):
                names = [name]
            case ast.Call(ast.Name(called) | ast.Attribute(_, called), named) if re.search("attr|patch|object", called):
                texts = [str(argument.value) for argument in named[:2] if isinstance(argument, ast.Constant)]
                names = [text.rpartition(".")[2] for text in texts]
            case ast.ImportFrom(module, aliases) if module != "holdfast.client":  # its modules are called so
                names = [alias.name for alias in aliases]
            case _:
                continue
        yield from (f"{node.lineno} {name}" for name in names if re.match("_(?!_)", name) and name not in own)


def test_tests_leave_private_attributes_alone() -> None:
    """A test knows what anybody may know: it fails because a promise is broken, not because the code was rearranged."""
    files = [path for path in _python_files("tests") if _name(path) not in INSIDE_THE_RAFT_LIBRARY]
    suspects = [path for path in files if MAY_USE_PRIVATE.search(path.read_text(encoding="utf-8"))]
    strays = [f"{_name(path)}:{stray}" for path in suspects for stray in _private_names(_tree(path))]
    assert strays == [], "use the public surface, or assert on the effect"


def test_functions_fit_a_screen() -> None:
    long = [
        f"{_name(path)}:{node.lineno} {node.name} has {lines} lines"
        for path in _python_files(*SOURCE_ROOTS, *OTHER_ROOTS)
        for node in _functions(_tree(path))
        if (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert long == []


def test_files_stay_short() -> None:
    long = [
        f"{_name(path)} has {lines} lines"
        for path in _python_files(*SOURCE_ROOTS, *OTHER_ROOTS)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES_MAX
    ]
    assert long == []


def test_nothing_is_left_for_later() -> None:
    marker = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
    found = [
        f"{_name(path)}:{number}"
        for path in _python_files(*SOURCE_ROOTS, *OTHER_ROOTS)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if marker.search(line)
    ]
    assert found == []


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_generated_code_has_no_service_stubs(root: str) -> None:
    """Method paths come from the descriptors; stubs would be a second source of truth."""
    assert list((REPO / root).rglob("*_pb2_grpc.py")) == []
