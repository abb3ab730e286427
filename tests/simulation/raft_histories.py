"""Histories of replicas under faults: what a seed means, and whether it counts."""

from holdfast.broker.raft.engine import ShardRaft
from tests.simulation.raft_faults import one_fault
from tests.simulation.raft_world import Faults, Violation, World

STEPS = 60
ACKNOWLEDGED_MIN = 50
LEADERS_MIN = 3
DOWN_MIN = 2


def history(seed: int, replicas: int, engine: type[ShardRaft] = ShardRaft) -> World:
    """Faults for a while, then peace; raises a `Violation` if something that must hold does not."""
    world = World(seed, replicas, engine)
    draw = world.draw
    for process in world.processes.values():
        process.start()
    commands = 0
    for _ in range(STEPS):
        one_fault(world)
        for _ in range(draw.randint(0, 6)):
            world.propose(f"c{commands}".encode())
            commands += 1
            world.run(draw.uniform(0, 0.1))
        world.run(draw.uniform(0, 0.5))
    _make_peace(world)
    for _ in range(10):
        world.run(1.0)
        world.propose(f"c{commands}".encode())
        commands += 1
    world.run(3.0)
    world.check_end()
    if f"c{commands - 1}".encode() not in world.acknowledged:
        raise Violation("no progress once the faults were over")
    return world


def _make_peace(world: World) -> None:
    world.faults = Faults()
    for process in world.processes.values():
        process.slow_s = 0.0
        if process.engine is None:
            process.start()


def counts(world: World) -> bool:
    """Whether enough happened for the history to prove something."""
    return (
        len(world.acknowledged) >= ACKNOWLEDGED_MIN
        and len(world.leaders) >= LEADERS_MIN
        and world.down_max >= DOWN_MIN
        and world.reads > 0
    )
