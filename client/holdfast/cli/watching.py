"""What changes in a cluster from one look to the next. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.cli import health, plans
from holdfast.cli.health import ShardView
from holdfast.cli.problems import last_known
from holdfast.client import ClusterInfo, Plan, PlanStep, StepState


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is other than before, for people and for programs."""

    text: str
    record: Mapping[str, object]


class WatchedCluster:
    """A cluster as it was at the last look."""

    def __init__(self) -> None:
        self.views: list[ShardView] = []
        self.plan: Plan | None = None
        self.is_done = False  # there was a plan, and it is no longer under way
        self.last_known = ""  # what has to be said of the map while etcd does not answer
        self._leaders: dict[int, tuple[str, int]] = {}
        self._states: dict[int, StepState] = {}

    def update(self, info: ClusterInfo) -> list[Difference]:
        """What has changed since the last look; at the first one, how things are."""
        self.views = health.views(info)
        changes = [*self._map_changes(info), *self._leader_changes()]
        former = self.plan
        if info.plan is not None:
            if former is None or former.id != info.plan.id:
                self._states.clear()
                changes.append(_plan_change("began" if former is not None else "under_way", info.plan))
            self.plan = plans.judged(info.plan, info)
        elif former is not None:
            self.plan = plans.judged(former, info)
        if self.plan is not None:
            changes += self._step_changes(self.plan)
            if info.plan is None and not self.is_done:
                self.is_done = True
                changes.append(_plan_change("ended", self.plan))
        return changes

    def _map_changes(self, info: ClusterInfo) -> list[Difference]:
        was_current, self.last_known = not self.last_known, last_known(info)
        if was_current is info.etcd_answers:
            return []
        record = {"event": "map", "is_last_known": not info.etcd_answers, "age_ms": info.age_ms}
        return [Difference(self.last_known or "etcd answers: the map is current", record)]

    def _leader_changes(self) -> list[Difference]:
        changes = []
        for view in self.views:
            now = (view.leader, view.epoch)
            if self._leaders.get(view.shard) != now:
                self._leaders[view.shard] = now
                led = f"is led by {view.leader} (epoch {view.epoch})" if view.leader else "has no leader"
                record = {"event": "leader", "shard": view.shard, "leader": view.leader or None, "epoch": view.epoch}
                changes.append(Difference(f"shard {view.shard} {led}", record))
        return changes

    def _step_changes(self, plan: Plan) -> list[Difference]:
        changes = []
        for number, step in enumerate(plan.steps, start=1):
            if self._states.get(number) is not step.state:
                self._states[number] = step.state
                changes.append(_step_change(plan, number, step))
        return changes


def _plan_change(what: str, plan: Plan) -> Difference:
    done = plans.tally(plan)
    text = f"plan {plan.id} {what.replace('_', ' ')}: {done.steps - done.left} of {done.steps} steps done"
    record = {"event": "plan", "plan": plan.id, "what": what, "steps": done.steps, "left": done.left}
    return Difference(text, record)


def _step_change(plan: Plan, number: int, step: PlanStep) -> Difference:
    what = f"leadership to {step.destination}" if step.is_transfer else f"{step.source} to {step.destination}"
    record = {
        "event": "step",
        "plan": plan.id,
        "step": number,
        "shard": step.shard,
        "source": step.source or None,
        "destination": step.destination,
        "is_transfer": step.is_transfer,
        "state": str(step.state),
    }
    return Difference(f"step {number} of {len(plan.steps)}, shard {step.shard}, {what}: {step.state.lower()}", record)
