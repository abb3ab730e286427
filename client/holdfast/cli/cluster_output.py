"""What the commands about clusters print for people."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from holdfast.cli import health, output, policies
from holdfast.cli.cluster_calls import Overview
from holdfast.cli.handovers import Show as ShowHandover
from holdfast.cli.health import ShardView
from holdfast.cli.output import Shown
from holdfast.cli.plans import Show, tally
from holdfast.cli.problems import last_known, named_shards
from holdfast.cli.times import shown_duration
from holdfast.client import (
    ClusterInfo,
    ClusterNode,
    HandoverProgress,
    NodeReport,
    Plan,
    PlanStep,
    QueueSettings,
    Rebalancing,
    StepState,
)

STEPS_SHOWN_MAX = 20
_SHARDS_SHOWN_MAX = 40
_USUAL_WAITS = ("is busy", "for the moves of the shard")  # how the servers say that others go first
PLAN_NOTE = "`holdfast shard apply` carries it on"  # nobody else does, once whoever began it has gone

_HANDOVER_WORDS = {"ASKED": "hands over", "GRANTED": "may stop"}  # of a node that is about to be stopped
_STATE_WORDS = {
    StepState.WAITING: "waits",
    StepState.UNKNOWN: "waits",
    StepState.COPYING: "copies",
    StepState.LEAVING: "old one goes",
    StepState.DONE: "done",
    StepState.OVERTAKEN: "overtaken",
}


def last_known_parts(info: ClusterInfo) -> list[Shown]:
    """What stands above a map that is not current; nothing otherwise."""
    line = last_known(info)
    return [output.text(line, "bold red")] if line else []


def node_table(info: ClusterInfo, silent: Collection[str] = (), answering: Collection[str] = ()) -> Shown:
    """`silent`: those that do not answer although they hold their lease, as far as is known.
    `answering`: those that do, and are alive whatever is known."""
    rows = [
        (
            node.name,
            _node_state(node, is_silent=node.name in silent, is_sure=info.etcd_answers or node.name in answering),
            node.zone or "-",
            node.version or "-",
            node.address,
            f"{node.capacity:,}",
            f"{node.replicas:,}",
            f"{node.leaders:,}",
        )
        for node in info.nodes
    ]
    return output.table(
        ("node", "state", "zone", "version", "address", "capacity", "replicas", "leaders"), rows, left=5
    )


def _node_state(node: ClusterNode, *, is_silent: bool, is_sure: bool) -> str:
    alive = "alive" if is_sure else "was alive"
    life = ("NO ANSWER" if is_silent else alive) if node.is_alive else "GONE"
    parts = [life, "draining" if node.is_draining else ""]
    parts.append(_HANDOVER_WORDS.get(node.handover, "") if node.is_alive else "")
    return ", ".join(filter(None, parts))


def shard_table(views: Sequence[ShardView]) -> Shown:
    rows = [
        (
            str(view.shard),
            view.leader or "-",
            " ".join(view.voters) or "-",
            "; ".join(part for part in (view.problem, view.change) if part) or "-",
            "-" if view.lag is None else f"{view.lag:,}",
        )
        for view in views
    ]
    return output.table(("shard", "leader", "voters", "remark", "lag"), rows, left=4)


def overview_parts(overview: Overview, *, every_shard: bool) -> list[Shown]:
    """One screen: with many shards only those about which there is something to say, unless all are asked for."""
    info = overview.info
    views = health.views(info, overview.reports)
    shown = views
    if not every_shard and len(views) > _SHARDS_SHOWN_MAX:
        shown = [view for view in views if view.problem or view.change][:_SHARDS_SHOWN_MAX]
    parts = [output.text(_headline(info, len(overview.silent)), "bold"), *last_known_parts(info)]
    parts += [output.text(""), node_table(info, overview.silent, overview.answering), output.text("")]
    if not info.cluster_id:
        return parts
    if shown:
        parts.append(shard_table(shown))
    if len(shown) < len(views):
        parts.append(output.text(f"… and {len(views) - len(shown):,} more shards; --all shows them.", "dim"))
    parts += [output.text(""), output.text(_depth_line(overview))]
    parts.append(output.text(_plan_line(info.plan)))
    parts += [output.text(line) for line in rebalancing_lines(info.rebalancing)]
    return parts


def _headline(info: ClusterInfo, silent: int) -> str:
    alive = sum(node.is_alive for node in info.nodes) - silent
    if not info.cluster_id and not info.etcd_answers:
        return f"Whether there is a cluster {info.name} is not known"
    if not info.cluster_id:
        return f"There is no cluster {info.name} yet: {alive} nodes have registered for it"
    were = "" if info.etcd_answers else "were "
    return (
        f"Cluster {info.name} ({info.cluster_id}): {alive} of {len(info.nodes)} nodes {were}alive, "
        f"{info.shards_count:,} shards, {info.replication} replicas of each"
    )


def _depth_line(overview: Overview) -> str:
    depth = overview.depth
    if depth is None:
        return "tasks   " + ("could not be counted" if overview.depth_error else "are counted through a router")
    line = (
        f"tasks   {depth.unfinished:,} unfinished in {depth.queues:,} queue{'s' * (depth.queues != 1)}: "
        f"{depth.ready:,} ready, {depth.claimed:,} claimed, {depth.delayed:,} delayed, {depth.retrying:,} retrying; "
        f"{depth.dead:,} dead"
    )
    return f"{line} (without {named_shards(depth.missing_shards)})" if depth.missing_shards else line


def _plan_line(plan: Plan | None) -> str:
    if plan is None:
        return "plan    none under way"
    done = tally(plan)
    how_far = f"{done.steps - done.left} of {done.steps} steps done"
    return f"plan    {plan.id} is under way, {how_far}: {PLAN_NOTE}, `holdfast shard watch` shows it"


def rebalancing_lines(rebalancing: Rebalancing) -> list[str]:
    """What is done without anybody asking for it; nothing if nobody does, and it was never paused."""
    if rebalancing.is_paused:
        why = f" ({rebalancing.why})" if rebalancing.why else ""
        return [f"moves   by themselves are paused{why}: `holdfast rebalance --resume` goes on"]
    if not rebalancing.active:
        return []
    away = [f"{name} is away for {shown_duration(gone_ms)}" for name, gone_ms in rebalancing.gone_ms.items()]
    away += [f"{name} is given up" for name in rebalancing.given_up]
    return [f"moves   by themselves, by {rebalancing.active}" + (f": {', '.join(away)}" if away else "")]


# ------------------------------------------------------------------------------------------------------------ plans


def plan_parts(plan: Plan) -> list[Shown]:
    """A plan before it is carried out."""
    rows = [(str(number), *_step_cells(step), step.why, _size(step)) for number, step in enumerate(plan.steps, start=1)]
    parts: list[Shown] = [output.table(("step", "shard", "what", "from", "to", "why", "data"), rows, left=6)]
    return [*parts, output.text(plan_summary(plan))]


def plan_summary(plan: Plan) -> str:
    """What the server says about the plan, and how much data that is."""
    moves = [step for step in plan.steps if not step.is_transfer]
    known = [step.state_bytes for step in moves if step.state_bytes is not None]
    unknown = len(moves) - len(known)
    parts = [plan.summary] if plan.summary else []
    if known:
        more = f", and {_counted(unknown, 'replica')} of unknown size" if unknown else ""
        parts.append(f"About {output.shown_size(sum(known))} to copy{more}.")
    elif moves:
        parts.append("How much data that is could not be found out.")
    return " ".join(parts)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _step_cells(step: PlanStep) -> tuple[str, str, str, str]:
    what = "lead" if step.is_transfer else "move"
    return str(step.shard), what, step.source or "-", step.destination


def _size(step: PlanStep) -> str:
    if step.is_transfer:
        return "-"
    return "?" if step.state_bytes is None else output.shown_size(step.state_bytes)


def progress_parts(plan: Plan, note: str = "") -> list[Shown]:
    """A plan while it is carried out: what is under way first, then what waits."""
    done = tally(plan)
    numbered = [(number, step) for number, step in enumerate(plan.steps, start=1) if not step.state.is_final]
    numbered.sort(key=lambda row: (row[1].state in (StepState.WAITING, StepState.UNKNOWN), row[0]))
    rows = [
        (str(number), *_step_cells(step), _STATE_WORDS[step.state], step.detail or "-", _lag(step), _size(step))
        for number, step in numbered[:STEPS_SHOWN_MAX]
    ]
    head = f"Plan {plan.id}: {done.done} of {done.steps} steps done"
    head += f", {done.overtaken} overtaken" if done.overtaken else ""
    parts = [output.text(head, "bold")]
    if rows:
        names = ("step", "shard", "what", "from", "to", "state", "detail", "lag", "data")
        parts.append(output.table(names, rows, left=7))
    if len(numbered) > len(rows):
        parts.append(output.text(f"… and {len(numbered) - len(rows):,} more that wait.", "dim"))
    if note:
        parts.append(output.text(f"Waiting: {note}", "yellow"))
    return parts


def _lag(step: PlanStep) -> str:
    return "-" if step.lag is None else f"{step.lag:,}"


@contextmanager
def plan_progress(*, quiet: bool = False) -> Iterator[Show]:
    """Shows how far a plan is, on standard error: at a terminal a table that changes, elsewhere a line per change."""
    if quiet:
        yield lambda plan, note: None
        return
    if output.is_watched(on_errors=True):
        with output.redrawn(on_errors=True) as redraw:
            yield lambda plan, note: redraw(progress_parts(plan, note))
        return
    lines = ChangeLines()

    def show(plan: Plan, note: str) -> None:
        for line in lines.of(plan, note):
            output.print_note(line)

    yield show


# --------------------------------------------------------------------------------------------------------- handover


@contextmanager
def handover_progress(node: str, *, quiet: bool = False) -> Iterator[ShowHandover]:
    """Shows what a node that is to stop waits for, on standard error: at a terminal as it is now, elsewhere a line for
    each change."""
    if quiet:
        yield lambda progress, trouble: None
        return
    with output.redrawn(on_errors=True) as redraw:
        reported = [""]

        def show(progress: HandoverProgress | None, trouble: str) -> None:
            lines = _handover_lines(node, progress, trouble)
            redraw([output.text(line) for line in lines])
            if not output.is_watched(on_errors=True) and lines[0] != reported[0]:
                reported[0] = lines[0]
                output.print_note(lines[0])

        yield show


def _handover_lines(node: str, progress: HandoverProgress | None, trouble: str) -> list[str]:
    if trouble or progress is None:
        return [f"Waiting: {trouble or 'nothing is known yet'}"]
    held_back = progress.held_back
    head = (
        f"Node {node} leads {_counted(progress.leads, 'shard')}, {_counted(len(held_back), 'shard')} cannot do without"
    )
    lines = [f"  shard {shard}: {why}" for shard, why in list(held_back.items())[:STEPS_SHOWN_MAX]]
    return [f"{head} it", *lines]


def handover_outcome(node: str, progress: HandoverProgress) -> str:
    line = f"Node {node} may be stopped: every shard keeps its majority without it."
    if not progress.single:
        return line
    shards = named_shards(progress.single)
    return f"{line} But it has the only replica of {shards}: nothing of that is served until it is back."


class ChangeLines:
    """What has changed since a plan was last shown, a line each."""

    def __init__(self) -> None:
        self._states: dict[int, StepState] = {}
        self._details: dict[int, str] = {}
        self._note = ""

    def of(self, plan: Plan, note: str) -> list[str]:
        lines = []
        for number, step in enumerate(plan.steps, start=1):
            if step.state is not self._states.get(number) and step.state not in (StepState.WAITING, StepState.UNKNOWN):
                lines.append(f"step {number} of {len(plan.steps)}: {step_words(step)}: {_STATE_WORDS[step.state]}")
            self._states[number] = step.state
            # That another step has its turn first is how it should be; whatever else a step waits for is told.
            is_usual = step.state is not StepState.WAITING or step.detail.endswith(_USUAL_WAITS)
            detail = "" if is_usual else step.detail
            if detail and detail != self._details.get(number):
                lines.append(f"step {number} of {len(plan.steps)}: {step_words(step)}: waits: {detail}")
            self._details[number] = detail
        if note and note != self._note:
            lines.append(f"waiting: {note}")
        self._note = note
        return lines


def step_words(step: PlanStep) -> str:
    if step.is_transfer:
        return f"shard {step.shard} is to be led by {step.destination}"
    return f"shard {step.shard} moves from {step.source} to {step.destination}"


def plan_outcome(plan: Plan) -> str:
    moved = sum(step.state is StepState.DONE and not step.is_transfer for step in plan.steps)
    led = sum(step.state is StepState.DONE and step.is_transfer for step in plan.steps)
    overtaken = tally(plan).overtaken
    rest = f", {_counted(overtaken, 'step')} no longer needed" if overtaken else ""
    return f"The plan is done: {_counted(moved, 'replica')} moved, {_counted(led, 'leader')} changed{rest}."


# --------------------------------------------------------------------------------------------------- shards, queues


def print_desired(info: ClusterInfo, reports: Sequence[NodeReport]) -> None:
    """Below the replicas as they are: where they should be instead."""
    for view in health.views(info, reports):
        if not health.is_spread(view):
            desired, real = ", ".join(view.replicas), ", ".join(view.voters) or "nobody"
            change = f" ({view.change})" if view.change else ""
            output.print_line(f"Shard {view.shard} should be on {desired}; it is on {real}{change}.")


def settings_rows(settings: QueueSettings) -> list[tuple[str, str]]:
    route, policy = settings.route, settings.policy
    newest = route.sets[-1].shards if route.sets else (route.home,)
    rows = [
        ("queue", route.queue),
        ("home shard", f"{route.home} (tasks with a request id of their own)"),
        ("new tasks go to", _shards(newest)),
    ]
    if route.draining:
        rows.append(("draining", f"{_shards(route.draining)}: older tasks, served where they are until none is left"))
    if policy.paused:
        rows.append(("paused", f"nothing is handed out until `holdfast queue resume {route.queue}`"))
    return rows + policies.rows(policy)


def _shards(shards: Sequence[int]) -> str:
    return f"shard{'s' * (len(shards) != 1)} {', '.join(map(str, shards))}"
