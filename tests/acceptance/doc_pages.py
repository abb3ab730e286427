"""Runs the pages of the documentation: every fenced block of a page, in order, as one session of a reader.

python  A block that begins with a comment such as `# hello.py` is saved under that name. Others are executed, all of a
        page in one interpreter, as in a Python shell.
sh      Run line by line. Servers and workers are started in the background and stopped at the end of the page. A line
        that begins with `kill` ends some of them: the page goes on when they have ended. A broker that is given a file
        goes by it alone. `holdfast cluster up` gets a port for its router if the page gives it none, and what it
        started is stopped at the end. Lines that begin with `openssl` are left out where there is no such command.
toml    Loaded by the broker's configuration; saved if it begins with a comment such as `# holdfast.toml`. A name with
        `router` in it is one of a router's, one with `access` has access rules.
text    Directly after a python or sh block: what that block must print. Elsewhere: a picture.

Anything else is an error, so that no block can escape. In expected output `…` stands for anything, a line of `…` for
any lines, and ids, dates and times for others of their kind. The ports of the pages are replaced by free ones.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.access.documents import from_toml
from holdfast.broker.config import load_config
from holdfast.router.config import load_config as load_router_config
from tests.acceptance.running import REPO, Running, environment
from tests.integration.cluster import free_ports
from tests.integration.server import wait_until

LANGUAGES = ("python", "sh", "toml", "text")
LINE_S_MAX = 100.0

# What makes the recipes of other targets short. A target that is not here is an error.
MAKE_ARGS = {
    "help": "",
    "test": "--version",
    "bench": "--help",
    "bench-peers": "--help",
    "performance": "--help",
    "chaos": "--help",
    "demo": "--help",
}  # test_demo.py runs the demo

_FILE_NAME = re.compile(r"# ([\w-]+\.(?:py|toml))$")
_LONG_RUNNING = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:holdfast (?:dev|broker|router|worker)|etcd|make run)\b(?!.*(?:--help|\|\|))"
)
# Ports and directory are in the file: those of the session must not win over it.
_BROKER_OF_A_FILE = re.compile(r"\bholdfast broker --config\b")
_BY_ITS_FILE = "env -u HOLDFAST_PORT -u HOLDFAST_OPS_PORT -u HOLDFAST_DATA_DIR holdfast broker --config"
_CLUSTER_UP = re.compile(r"\bholdfast cluster up\b(?!.*--router-port)")
_CLUSTER_DIRECTORY = "holdfast-cluster"
_PORT = re.compile(r"(?P<before>localhost:|127\.0\.0\.1:|port |PORT=|port = )(?P<port>7[45]\d\d|23(?:79|80))\b")
_KINDS = (  # of values that differ from run to run
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "<id>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d\b"), "<date>"),
    (re.compile(r"\b\d\d:\d\d:\d\d(?:\.\d+)?\b"), "<time>"),
)

_INTERPRETER = """
import contextlib, io, json, sys, traceback
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed, trouble = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(json.loads(line), "<block>", "exec"), names)
    except BaseException:
        trouble = traceback.format_exc()
    print(json.dumps([printed.getvalue(), trouble]), flush=True)
"""


class PageError(AssertionError):
    """A block of a page does not do what the page says."""

    def __init__(self, page: str, line: int, problem: str) -> None:
        super().__init__(f"{page}:{line}: {problem}")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    line: int  # of the page, where the block begins
    follows: bool  # whether only blank lines are between it and the block before


def blocks_of(page: str, text: str) -> list[Block]:
    """All fenced blocks of a page; raises if it has one that nobody would run."""
    blocks: list[Block] = []
    opened = 0  # the line of the block that is open
    follows = False
    language = ""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if opened and line == "```":
            blocks.append(Block(language, "\n".join(lines) + "\n", opened, follows))
            opened, follows = 0, True
        elif opened:
            lines.append(line)
        elif line.startswith("```"):
            language = line[3:]
            if language not in LANGUAGES:
                raise PageError(page, number, f"nobody knows how to run a block of {language or 'no language'}")
            opened, lines = number, []
        elif line.lstrip().startswith(("```", "~~~")):
            raise PageError(page, number, "a block that is indented or has another fence would not be run")
        elif line.strip():
            follows = False
    if opened:
        raise PageError(page, opened, "this block has no end")
    return blocks


def matches(expected: str, printed: str) -> bool:
    """Whether a text is what was expected, but for what may differ."""
    pattern = ""
    for line in _normal(expected).splitlines():
        anything = ".*".join(re.escape(part) for part in line.split("…"))
        pattern += "(?:.*\n)*" if line == "…" else anything + "\n"
    return re.fullmatch(pattern, _normal(printed)) is not None


def _normal(text: str) -> str:
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    text = "".join(f"{line}\n" for line in lines)
    for kind, name in _KINDS:
        text = kind.sub(name, text)
    return text


def logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of a shell block, those that end with a backslash put together; without blank ones and comments."""
    whole, began = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        began = began if whole else number
        whole += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        if whole.strip() and not whole.lstrip().startswith("#"):
            yield began, whole.strip()
        whole = ""


class Started(Running):
    """A server or a worker of a page."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_for_end(self) -> None:
        wait_until(lambda: self.exit_code is not None, f"`{self.command}` to end")


class Session:
    """One reader of one page."""

    def __init__(self, page: str, directory: Path) -> None:
        self._page = page
        self._directory = directory
        self._ports = dict(zip(("7400", "7403"), map(str, free_ports(2)), strict=True))
        self._env = environment(
            {
                "HOLDFAST_PORT": self._ports["7400"],
                "HOLDFAST_OPS_PORT": self._ports["7403"],
                "HOLDFAST_ADDRESS": f"127.0.0.1:{self._ports['7400']}",
                "HOLDFAST_DATA_DIR": str(directory / "holdfast-data"),
                "HOLDFAST_FREE_BYTES_MIN": "0",
            }
        )
        self._state = directory / ".shell-state"
        self.running: list[Started] = []
        self._started = 0
        self._interpreter: subprocess.Popen[str] | None = None
        self._printed: str | None = None  # by the block before

    def run(self, block: Block) -> None:
        if block.language == "text":
            self._expect(block)
            return
        self._printed = None
        if block.language == "python":
            self._python(block)
        elif block.language == "sh":
            self._shell(block)
        else:
            self._toml(block)

    def _expect(self, block: Block) -> None:
        if block.follows and self._printed is not None and not matches(block.text, self._printed):
            raise PageError(self._page, block.line, f"expected\n{block.text}\nbut this was printed:\n{self._printed}")
        self._printed = None

    # --- python and toml --------------------------------------------------------------------------------------

    def _python(self, block: Block) -> None:
        source = self._redirected(block.text)
        if self._saved(source):
            return
        if self._interpreter is None:
            self._interpreter = subprocess.Popen(
                [sys.executable, "-c", _INTERPRETER],
                cwd=self._directory, env=self._env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
        assert self._interpreter.stdin is not None
        assert self._interpreter.stdout is not None
        self._interpreter.stdin.write(json.dumps(source) + "\n")
        self._interpreter.stdin.flush()
        self._printed, trouble = json.loads(self._interpreter.stdout.readline())
        if trouble:
            raise PageError(self._page, block.line, f"this failed:\n{trouble}")

    def _toml(self, block: Block) -> None:
        text = self._redirected(block.text)
        self._saved(text)
        path = self._directory / ".checked.toml"
        path.write_text(text)
        try:
            if "router" in text.partition("\n")[0]:
                load_router_config(path, {}, env={})
                return
            if "access" in text.partition("\n")[0]:
                from_toml(text.encode())
                return
            # A file that all nodes share has no name in it: the commands give each its own, which shows when they run.
            load_config(path, {}, env={} if "node_name" in text else {"HOLDFAST_NODE_NAME": "n1"})
        except Exception as error:
            raise PageError(self._page, block.line, f"the server refuses this:\n{error}") from error

    def _saved(self, source: str) -> bool:
        name = _FILE_NAME.match(source.partition("\n")[0])
        if name:
            (self._directory / name[1]).write_text(source)
        return name is not None

    def _redirected(self, text: str) -> str:
        """The same with this page's own ports."""

        def replace(found: re.Match[str]) -> str:
            return found["before"] + self._port_for(found["port"])

        return _PORT.sub(replace, text)

    def _port_for(self, shown: str) -> str:
        while shown not in self._ports:
            (port,) = free_ports(1)
            if str(port) not in self._ports.values():
                self._ports[shown] = str(port)
        return self._ports[shown]

    # --- the shell --------------------------------------------------------------------------------------------

    def _shell(self, block: Block) -> None:
        printed = ""
        for number, line in logical_lines(block.text):
            line = self._redirected(line)
            if _LONG_RUNNING.match(line):
                self._start(block.line + number, line)
            elif line.startswith("kill "):
                self._kill(block.line + number, line)
            elif not line.startswith("openssl ") or shutil.which("openssl"):
                printed += self._as_on_the_page(self._line(block.line + number, line))
        self._printed = printed

    def _line(self, number: int, line: str) -> str:
        # Variables and the directory are carried from line to line, as in a terminal.
        state = f"'{self._state}'"
        script = f"set -a; [ -f {state} ] && . {state}\n{self._command(number, line)}\ncode=$?\n"
        script += f"{{ export -p; echo \"cd '$PWD'\"; }} > {state}; exit $code"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self._directory, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=LINE_S_MAX,
        )  # fmt: skip
        if done.returncode:
            raise PageError(self._page, number, f"`{line}` ended with {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _as_on_the_page(self, text: str) -> str:
        for shown, port in self._ports.items():
            text = re.sub(rf"\b{port}\b", shown, text)
        return text

    def _command(self, number: int, line: str) -> str:
        """The line as it is run here: `make` in the repository, and the virtual environment wherever it is."""
        line = _BROKER_OF_A_FILE.sub(_BY_ITS_FILE, line.replace(".venv/", f"{sys.prefix}/"))
        if not (self._directory / _CLUSTER_DIRECTORY).exists():  # one that is there keeps its ports
            line = _CLUSTER_UP.sub(f"holdfast cluster up --router-port {self._ports['7400']}", line)
        if not line.startswith("make "):
            return line
        target = line.partition("#")[0].split()[1]
        if target not in MAKE_ARGS:
            raise PageError(self._page, number, f"nobody knows how to run `make {target}` in a short time")
        return " ".join([*_make(target), f"ARGS='{MAKE_ARGS[target]}'"])

    def _start(self, number: int, line: str) -> None:
        command = line.partition(" #")[0].rstrip("& ")
        # `env`, because settings may stand before the command.
        is_make = command.startswith("make ")
        argv = _make("run") if is_make else ["bash", "-c", f"exec env {self._command(number, command)}"]
        self._started += 1
        output = self._directory / f".output-{self._started}"
        process = Started(argv, self._directory, output, self._env)
        self.running.append(process)
        try:
            process.wait_for(_sign_of(command))
        except AssertionError as error:
            raise PageError(self._page, number, f"`{line}` did not start: {error}") from error

    def _kill(self, number: int, line: str) -> None:
        """Ends processes of this page, and nothing else on this machine."""
        pids = [int(word) for word in self._line(number, line.replace("kill", "echo", 1)).split() if word.isdigit()]
        ending = [process for process in self.running if process.pid in pids]
        if not ending or len(ending) < len(pids):
            raise PageError(self._page, number, f"`{line}` names processes that this page has not started: {pids}")
        self._line(number, line)
        for process in ending:
            process.wait_for_end()
            self.running.remove(process)
            self._check_end(process, -signal.SIGKILL if " -9 " in line else 0)

    # --- the end ----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Stops what runs as Ctrl-C would, workers first, the last one first; everything has to end well."""
        if self._interpreter is not None and self._interpreter.stdin is not None:
            self._interpreter.stdin.close()
            if self._interpreter.wait(30):
                raise PageError(self._page, 0, "the Python of this page did not end well")
        workers = [process for process in self.running if " worker " in process.command]
        servers = [process for process in self.running if process not in workers]
        for process in reversed(servers + workers):
            if process.exit_code is not None:
                raise PageError(self._page, 0, f"`{process.command}` ended with {process.exit_code}:\n{process.output}")
            process.interrupt()
            self._check_end(process, 0)

    def _check_end(self, process: Started, wanted: int) -> None:
        if " etcd " in process.command:
            return  # not ours: it ends by the signal
        # make, which was interrupted as well, has an exit code of its own.
        if process.exit_code != wanted and not process.command.startswith("make "):
            raise PageError(self._page, 0, f"`{process.command}` ended with {process.exit_code}:\n{process.output}")
        if wanted == 0 and not any("stopped" in line.lower() for line in process.output.splitlines()[-3:]):
            raise PageError(self._page, 0, f"`{process.command}` did not stop warmly:\n{process.output}")

    def close(self) -> None:
        if (self._directory / _CLUSTER_DIRECTORY).exists():
            stop = ["holdfast", "cluster", "down", "--dir", _CLUSTER_DIRECTORY]
            subprocess.run(stop, cwd=self._directory, env=self._env, check=False, capture_output=True)
        for process in self.running:
            process.close()
        if self._interpreter is not None:
            self._interpreter.kill()
            self._interpreter.wait()
            for stream in (self._interpreter.stdin, self._interpreter.stdout):
                if stream is not None:
                    stream.close()


def run_page(page: str, text: str, directory: Path) -> int:
    """Runs a page and returns how many blocks it has; raises `PageError` at the first that does not do what it says."""
    blocks = blocks_of(page, text)
    with _session(page, directory) as session:
        for block in blocks:
            session.run(block)
        session.finish()
    return len(blocks)


@contextmanager
def _session(page: str, directory: Path) -> Iterator[Session]:
    session = Session(page, directory)
    try:
        yield session
    finally:
        session.close()


def _sign_of(command: str) -> str:
    """What a process says once it is there."""
    if " worker " in f"{command} ":
        return " serves "
    return "ready to serve" if command.startswith("etcd ") else "serving"


def _make(target: str) -> list[str]:
    """The real recipe, in this virtual environment, which is taken to be up to date."""
    stamps = [f"--old-file={sys.prefix}/{name}" for name in (".installed", ".installed-dev")]
    environments = [f"{name}={sys.prefix}" for name in ("VENV", "PEERS_VENV")]
    return ["make", "--no-print-directory", "-C", str(REPO), *stamps, *environments, target]
