"""Every command and code block of README.md and docs/ is run as printed, and the reference tables cannot drift."""

import inspect
import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic.fields import FieldInfo

from holdfast.broker.config import ENV_PREFIX, BrokerConfig
from holdfast.broker.metrics import Metrics
from holdfast.cli.problems import EXIT_CODE_MEANINGS
from holdfast.client import Holdfast, Task, Worker
from holdfast.client.worker.meters import GAUGES, Meter
from holdfast.cluster.map.policy import POLICY_FIELDS
from holdfast.cluster.settings import CallerSettings, ClusterSettings
from holdfast.machine.rows import DEAD_REASONS
from holdfast.rebalancer.config import RebalancerConfig
from holdfast.rebalancer.metrics import Metrics as RebalancerMetrics
from holdfast.router.config import RouterConfig
from holdfast.router.metrics import Metrics as RouterMetrics
from holdfast.serving.settings import ADDRESSES_PATTERN, HOSTS_PATTERN, NETWORKS_PATTERN, URL_PATTERN
from tests.acceptance.doc_pages import PageError, Session, blocks_of, logical_lines, matches, run_page
from tests.acceptance.running import REPO
from tests.long import IS_LONG
from tests.unit.cli.cli_runner import commands

PAGES = ["README.md", *(path.relative_to(REPO).as_posix() for path in sorted((REPO / "docs").glob("*.md")))]
INTERNALS = [path.relative_to(REPO).as_posix() for path in sorted((REPO / "docs/internals").glob("*.md"))]
LONG_PAGES = (  # README starts a cluster, too
    "docs/backup.md", "docs/cli.md", "docs/clusters.md", "docs/dead-letters.md", "docs/limits.md",
    "docs/operating-queues.md", "docs/retries.md", "docs/scheduling.md", "docs/static-clusters.md",
    "docs/unique-and-results.md",
)  # fmt: skip
NOT_RUN = ("docs/kubernetes.md",)  # needs a cluster of Kubernetes; test_kubernetes_page.py reads its commands


def page_text(name: str) -> str:
    return (REPO / name).read_text(encoding="utf-8")


@pytest.mark.timeout(360)  # a page is many processes, one after the other
@pytest.mark.parametrize(
    "page", [page for page in PAGES if page not in NOT_RUN and (IS_LONG or page not in LONG_PAGES)]
)
def test_every_block_does_what_the_page_says(page: str, tmp_path: Path) -> None:
    assert run_page(page, page_text(page), tmp_path) > 0


@pytest.mark.parametrize("page", [*PAGES, *INTERNALS, "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_between_pages_lead_somewhere(page: str) -> None:
    targets = re.findall(r"\]\(([^)#\s]+)", page_text(page))
    missing = [target for target in targets if "://" not in target and not ((REPO / page).parent / target).exists()]
    assert missing == []


# --- reference tables ---------------------------------------------------------------------------------------------


def rows_of(text: str) -> dict[str, list[str]]:
    """Rows of tables by what stands in backquotes in their first column."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:3] == "| `"]
    return {row[0].strip("`"): row[1:] for row in rows}


def shown(name: str, value: object) -> str:
    """A value of a setting as the page has it: bytes and long times in units that people read."""
    if value in (None, ()):
        return "none"
    if not isinstance(value, int | float):
        return f"`{value}`"
    if "bytes" in name:
        units = [("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)]
    elif name.endswith("_ms") or "_ms_" in name:
        units = [("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)]
    else:
        units = []
    for unit, size in units:
        if value >= size and value % size == 0:
            return f"{value // size:,} {unit}"
    plain = f"{value:,}" if "port" not in name else str(value)
    return f"{plain} ms" if units and units[0][0] == "d" and value else plain


def setting_row(field: FieldInfo, name: str) -> list[str]:
    bounds = {key: getattr(item, key) for item in field.metadata for key in ("ge", "le") if hasattr(item, key)}
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    if name == "nodes":
        (most,) = [item.max_length for item in field.metadata]
        allowed = f"up to {most} nodes"
    elif choices:
        allowed = ", ".join(f"`{choice}`" for choice in choices)
    elif bounds:
        allowed = f"{shown(name, bounds['ge'])} to {shown(name, bounds['le'])}"
    elif ADDRESSES_PATTERN in (patterns := patterns_of(field)):
        allowed = "addresses"
    elif "address" in name:
        allowed = "an address"
    elif URL_PATTERN in patterns:
        allowed = "a URL"
    elif HOSTS_PATTERN in patterns:
        allowed = "hosts"
    elif NETWORKS_PATTERN in patterns:
        allowed = "networks"
    elif patterns:
        allowed = "a name"
    else:
        allowed = "text" if field.annotation in (str, str | None) else "a path"
    return [shown(name, field.default), allowed, str(field.description)]


def patterns_of(field: FieldInfo) -> list[str]:
    return [item.pattern for item in field.metadata if getattr(item, "pattern", None)]


@pytest.mark.parametrize(
    ("title", "config"),
    [
        ("## Settings of a broker", BrokerConfig),
        ("## Settings of a router", RouterConfig),
        ("## Settings of a rebalancer", RebalancerConfig),
    ],
)
def test_the_configuration_page_has_every_setting_as_it_is(title: str, config: type[ClusterSettings]) -> None:
    wanted = {name: setting_row(field, name) for name, field in config.model_fields.items()}
    section = page_text("docs/configuration.md").partition(f"\n{title}\n")[2].partition("\n## ")[0]
    found = {name: row for name, row in rows_of(section).items() if len(row) == 3}
    rows = [f"| `{name}` | {' | '.join(row)} |" for name, row in wanted.items() if found.get(name) != row]
    assert not rows, "\n".join(
        [f"docs/configuration.md, {title}, needs these rows, in the order of the source:", *rows]
    )
    assert found.keys() == wanted.keys(), f"docs/configuration.md, {title}, has what is no setting"
    # In the order of the source, which is grouped. What all servers share comes first there; a page may have it later.
    shared = set(CallerSettings.model_fields)
    assert [name for name in found if name not in shared] == [name for name in wanted if name not in shared]


def test_the_configuration_page_has_every_option_of_apps_tasks_and_workers() -> None:
    rows = {name for name, row in rows_of(page_text("docs/configuration.md")).items() if len(row) == 2}
    options = {
        f"{title}{name}"
        for title, function in (
            ("Holdfast ", Holdfast.__init__),
            ("task ", Holdfast.task),
            ("options ", Task.options),
            ("Worker ", Worker.__init__),
        )
        for name in inspect.signature(function).parameters
        if name not in ("self", "function", "app")
    }
    assert {row for row in rows if " " in row} == options
    assert {row for row in rows if " " not in row} == {
        "HOLDFAST_ADDRESS",
        "HOLDFAST_TRANSPORT",
        "HOLDFAST_TOKEN",
        "HOLDFAST_TOKEN_FILE",
        "HOLDFAST_TLS_CA",
        "HOLDFAST_TLS_CERT",
        "HOLDFAST_TLS_KEY",
        f"{ENV_PREFIX}<SETTING>",
    }


def test_the_page_about_queues_has_every_field_of_a_policy() -> None:
    table = page_text("docs/operating-queues.md").partition("| field |")[2].partition("\n\n")[0]
    named = [name for line in table.splitlines() for name in re.findall("`([a-z_]+)`", line.split(" | ")[0])]
    assert sorted(named) == sorted(POLICY_FIELDS)


def test_the_page_about_dead_letters_has_every_reason() -> None:
    rows = rows_of(page_text("docs/dead-letters.md"))
    assert {name for name in rows if name.isupper()} == set(DEAD_REASONS.values()) - {""}


def server_metrics() -> set[str]:
    there = (Metrics().render() + RouterMetrics().format() + RebalancerMetrics().format()).decode()
    return {name for name in re.findall("# HELP (holdfast_[a-z_]+) ", there) if not name.endswith("_created")}


def test_the_pages_for_operators_have_every_metric_of_servers() -> None:
    documented = page_text("docs/clusters.md") + page_text("docs/operating-queues.md")
    missing = server_metrics() - set(re.findall(r"\bholdfast_[a-z_]+", documented))
    assert not missing, f"a table of docs/clusters.md or docs/operating-queues.md needs a row of {sorted(missing)}"


@pytest.mark.parametrize(("page", "least"), [("docs/clusters.md", 6), ("docs/operating-queues.md", 4)])
def test_what_operators_are_told_to_watch_is_there(page: str, least: int) -> None:
    text = page_text(page)
    metrics = set(re.findall(r"\bholdfast_[a-z_]+", text))
    assert len(metrics) >= least
    assert metrics - server_metrics() == set()
    lines = text.partition("| line in the log |")[2].partition("\n\n")[0]
    events = set(re.findall("`([a-z_ ]+)`", lines))
    assert len(events) >= least
    files = [path for root in ("broker", "common", "router") for path in (REPO / root).glob("**/*.py")]
    source = "".join(path.read_text() for path in files)
    assert {event for event in events if f'"{event}"' not in source} == set()


def test_the_page_about_workers_has_every_metric_of_theirs() -> None:
    section = page_text("docs/workers.md").partition("| metric |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`(?:holdfast_worker_|…_)([a-z_]+)", section))
    shown = Meter([]).text(dict.fromkeys(GAUGES, 0), {})
    assert named == set(re.findall(r"# TYPE holdfast_worker_([a-z_]+)", shown))


def test_the_command_line_page_has_every_command_and_exit_code() -> None:
    text = page_text("docs/cli.md")
    headings = re.findall(r"^## `holdfast ([^`A-Z\[]+)", text, re.MULTILINE)
    named = [heading.strip() for heading in headings]
    missing = [f"## `holdfast {command}`" for command in commands() if command not in named]
    assert not missing, f"docs/cli.md needs {missing}, each with an example"
    assert sorted(named) == sorted(commands()), "docs/cli.md has a command that is not there, or one twice"
    codes = {name: row[0] for name, row in rows_of(text).items() if name.isdigit()}
    assert codes == {str(int(code)): meaning for code, meaning in EXIT_CODE_MEANINGS.items()} | {
        "141": "the reader of the output has gone"
    }


# --- the runner can fail --------------------------------------------------------------------------------------------


def fenced(language: str, *lines: str) -> str:
    return "\n".join([f"```{language}", *lines, "```", ""])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (fenced("sh", "echo hello", "false"), "page.md:3: `false` ended with 1"),
        (fenced("sh", "no-such-command"), "not found"),
        (fenced("sh", "echo a | grep b"), "ended with 1"),
        (fenced("sh", "echo a") + fenced("text", "b"), "expected\nb\n\nbut this was printed:\na"),
        (fenced("sh", "echo a") + fenced("text", "a", "a"), "expected"),
        (fenced("sh", "make clean"), "nobody knows how to run `make clean`"),
        (fenced("sh", "kill $PPID"), "that this page has not started"),
        (fenced("sh", "kill"), "ended with"),
        (fenced("sh", "holdfast worker nowhere:app"), "did not start"),
        (fenced("sh", "holdfast dev --port none"), "did not start"),
        (fenced("python", "print(1 / 0)"), "ZeroDivisionError"),
        (fenced("python", "raise SystemExit(0)"), "SystemExit"),
        (fenced("python", "print(1)") + "\n" + fenced("text", "2"), "expected\n2"),
        (fenced("toml", "port = 'seven'"), "port: got 'seven'"),
        (fenced("toml", "prt = 7"), "no such setting"),
        (fenced("ruby", "puts 1"), "a block of ruby"),
        (fenced("", "anything"), "a block of no language"),
        ("  " + fenced("sh", "true"), "indented"),
        ("~~~sh\ntrue\n~~~\n", "another fence"),
        ("```sh\ntrue\n", "has no end"),
    ],
)
def test_a_block_that_fails_fails_its_page(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(PageError) as refused:
        run_page("page.md", text, tmp_path)
    assert says in str(refused.value)


def test_a_process_that_ends_before_its_page_fails_the_page(tmp_path: Path) -> None:
    session = Session("page.md", tmp_path)
    try:
        [block] = blocks_of("page.md", fenced("sh", "holdfast dev"))
        session.run(block)
        session.running[0].close()
        with pytest.raises(PageError, match="ended with -9"):
            session.finish()
    finally:
        session.close()


@pytest.mark.parametrize(
    ("last", "left"), [("kill -9 $(cat data/LOCK)", 0), ("kill $(cat data/LOCK)", 0), ("cat data/LOCK", 1)]
)
def test_a_page_may_end_what_it_started(last: str, left: int, tmp_path: Path) -> None:
    """A broker of a file, which has its own ports and its own directory in it."""
    text = fenced("toml", "# one.toml", "port = 7501", "ops_port = 7503", 'data_dir = "data"')
    text += fenced("sh", "holdfast broker --config one.toml", last)
    session = Session("page.md", tmp_path)
    try:
        for block in blocks_of("page.md", text):
            session.run(block)
        assert len(session.running) == left
        session.finish()
    finally:
        session.close()


def test_a_page_is_one_session(tmp_path: Path) -> None:
    page = [
        fenced("python", "# numbers_of_mine.py", "def double(n: int) -> int:", "    return 2 * n"),
        fenced("python", "from numbers_of_mine import double", "four = double(2)"),
        fenced("python", "print(four)"),
        fenced("text", "4"),
        fenced("sh", "NAME=Ada", "mkdir there; cd there", "# a comment", "echo $NAME \\", "  $(basename $PWD)"),
        fenced("text", "Ada there"),
    ]
    assert run_page("page.md", "\n".join(page), tmp_path) == 6
    assert (tmp_path / "numbers_of_mine.py").exists()


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("task 01984f6e-0000-8000-8000-000000000001", "task 01a1e2e0-f124-8000-8000-000000000002", True),
        ("at 2030-01-02 03:04:05.678 UTC", "at 2026-11-16 05:42:39.001 UTC", True),
        ("took … s", "took 1.25 s", True),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a   \n", "a\n\n", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("took … s", "took 1.25 ms", False),
        ("a", "a\nb", False),
        ("a", "", False),
    ],
)
def test_only_what_may_differ_may_differ(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def test_blocks_and_lines_are_found_where_they_are() -> None:
    text = "intro\n\n" + fenced("sh", "a \\", "  b", "", "c") + "\n" + fenced("text", "x") + "prose\n" + fenced("text")
    blocks = blocks_of("page.md", text)
    assert [(block.language, block.line, block.follows) for block in blocks] == [
        ("sh", 3, False), ("text", 10, True), ("text", 14, False),
    ]  # fmt: skip
    assert list(logical_lines(blocks[0].text)) == [(1, "a   b"), (4, "c")]
