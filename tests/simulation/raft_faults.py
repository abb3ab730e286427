"""What can go wrong in a world of replicas. Each fault is one function; a history draws them by weight."""

from collections.abc import Callable

from tests.simulation.raft_world import World


def crash(world: World) -> None:
    if world.alive():
        world.draw.choice(world.alive()).crash()


def crash_the_leader(world: World) -> None:
    """The most interesting one to lose."""
    for process in world.alive():
        if process.leads:
            process.crash()


def start(world: World) -> None:
    for process in world.down():
        if world.draw.random() < 0.7:
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
    faults.latency_s_max = draw.choice([0.005, 0.02, 0.02, 0.1, 0.4])
    faults.shuffled = draw.random() < 0.5
    faults.stuck = draw.choice([0, 0, 0.02, 0.1])


def change_the_disks(world: World) -> None:
    draw = world.draw
    world.faults.sync_s_max = draw.choice([0.001, 0.01, 0.1])
    process = draw.choice(list(world.processes.values()))
    process.slow_s = draw.choice([0, 0, 0.2, 0.5])
    process.gather_s_max = draw.choice([0, 0, 0.01, 0.1])


def fill_a_disk(world: World) -> None:
    """Or make room again."""
    process = world.draw.choice(list(world.processes.values()))
    process.is_disk_full = not process.is_disk_full


def change_a_clock(world: World) -> None:
    process = world.draw.choice(list(world.processes.values()))
    process.set_clock_rate(world.draw.choice([0.3, 0.8, 1.0, 1.25, 3.0]))


def pause(world: World) -> None:
    if world.alive():
        world.draw.choice(world.alive()).pause(world.draw.uniform(0.1, 2.0))


def hand_over(world: World) -> None:
    for process in world.alive():
        world.hand_over(process, world.draw.choice(world.names))


def distrust_a_clock(world: World) -> None:
    """A replica whose clock is off neither campaigns nor leads."""
    if world.alive():
        world.draw.choice(world.alive()).set_may_campaign(world.draw.random() < 0.3)


def wipe(world: World) -> None:
    """A replica that does not belong to the group any more is deleted."""
    outside = [name for name in world.names if world.may_be_wiped(name)]
    if outside:
        world.wipe(world.draw.choice(outside)).start()


FAULTS: dict[Callable[[World], None], int] = {
    crash: 3,
    crash_the_leader: 2,
    start: 6,
    cut_in_two: 2,
    cut_one_way: 2,
    heal: 4,
    change_the_network: 2,
    change_the_disks: 2,
    fill_a_disk: 1,
    change_a_clock: 1,
    distrust_a_clock: 1,
    pause: 2,
    hand_over: 2,
    wipe: 1,
}


def one_fault(world: World) -> None:
    [fault] = world.draw.choices(list(FAULTS), list(FAULTS.values()))
    fault(world)
