"""Histories of replicas under faults: what a seed means, and whether it counts."""

from holdfast.raft.engine import ShardRaft
from tests.simulation.raft_checks import Violation
from tests.simulation.raft_plots import a_leader, make_peace, one_plot, turmoil, two_down
from tests.simulation.raft_world import World

PLOTS_MIN = 6
PLOTS_MAX = 12
PEACE_S_MAX = 12.0  # within which everything must work again; a message may be under way for some seconds
ACKNOWLEDGED_MIN = 50
LEADERS_MIN = 3
DOWN_MIN = 2


def history(seed: int, replicas: int, engine: type[ShardRaft] = ShardRaft, make_world: type[World] = World) -> World:
    """Plots until enough has happened, then peace; raises a `Violation` if something that must hold does not."""
    world = make_world(seed, replicas, engine)
    for process in world.processes.values():
        process.start()
    world.begin_load()
    world.operator.begin()
    if world.draw.random() < 0.7:
        a_leader(world)
    for number in range(PLOTS_MAX):
        if number >= PLOTS_MIN and counts(world):
            break
        one_plot(world)
        world.run(world.draw.uniform(0, 0.4))
    if world.down_max < DOWN_MIN:
        two_down(world)
    turmoil(world)
    _end(world)
    return world


def _end(world: World) -> None:
    make_peace(world)
    world.stop_load()
    last: list[bytes] = []

    def is_done() -> bool:
        last.append(world.propose())
        return any(command in world.checks.acknowledged for command in last)

    if not world.run_until(is_done, PEACE_S_MAX):
        raise Violation("no progress once the faults were over")
    if not world.run_until(world.operator.is_settled, PEACE_S_MAX):
        raise Violation(f"members are not as wanted once the faults were over: {world.operator.wanted}")
    members = [world.processes[name] for name in sorted(world.operator.wanted)]
    if not world.run_until(lambda: len({process.state.index for process in members}) == 1, PEACE_S_MAX):
        raise Violation(f"ends with different logs: {[(member.name, member.state.index) for member in members]}")
    world.checks.end(members)


def counts(world: World) -> bool:
    """Whether enough happened for the history to prove something."""
    return (
        len(world.checks.acknowledged) >= ACKNOWLEDGED_MIN
        and len(world.checks.leaders) >= LEADERS_MIN
        and world.down_max >= DOWN_MIN
        and world.checks.reads > 0
    )
