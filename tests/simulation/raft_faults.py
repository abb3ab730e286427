"""What can go wrong in a world of replicas. Each fault is one function; a history draws them by weight."""

from collections.abc import Callable

from holdfast.broker.raft.library import LEADER
from tests.simulation.raft_world import World


def crash(world: World) -> None:
    if world.alive():
        world.draw.choice(world.alive()).crash()
        world.note_down()


def crash_the_leader(world: World) -> None:
    """The most interesting one to lose."""
    for process in world.alive():
        if process.engine is not None and process.engine.role == LEADER:
            process.crash()
    world.note_down()


def start(world: World) -> None:
    for process in world.processes.values():
        if process.engine is None and world.draw.random() < 0.7:
            process.start()


def cut_in_two(world: World) -> None:
    names = world.names
    inside = {name for name in names if world.draw.random() < 0.5}
    world.faults.cut = {(a, b) for a in names for b in names if (a in inside) != (b in inside)}


def cut_one_way(world: World) -> None:
    names, draw = world.names, world.draw
    world.faults.cut = {(draw.choice(names), draw.choice(names)) for _ in range(draw.randint(1, 3))}


def heal(world: World) -> None:
    world.faults.cut = set()


def change_the_network(world: World) -> None:
    faults, draw = world.faults, world.draw
    faults.lost, faults.doubled = draw.choice([0, 0, 0.05, 0.3]), draw.choice([0, 0.1, 0.5])
    faults.latency_s_max = draw.choice([0.005, 0.02, 0.1, 0.4])
    faults.stuck = draw.choice([0, 0, 0.02, 0.1])


def change_the_disks(world: World) -> None:
    draw = world.draw
    world.faults.sync_s_max = draw.choice([0.001, 0.01, 0.1])
    draw.choice(list(world.processes.values())).slow_s = draw.choice([0, 0, 0.2, 0.5])


def hand_over(world: World) -> None:
    for process in world.alive():
        if process.engine is not None and not process.frozen:
            process.engine.hand_over(world.draw.choice(world.names))


FAULTS: dict[Callable[[World], None], int] = {
    crash: 2,
    crash_the_leader: 1,
    start: 3,
    cut_in_two: 1,
    cut_one_way: 1,
    heal: 2,
    change_the_network: 1,
    change_the_disks: 1,
    hand_over: 1,
}


def one_fault(world: World) -> None:
    [fault] = world.draw.choices(list(FAULTS), list(FAULTS.values()))
    fault(world)
