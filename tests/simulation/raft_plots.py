"""Plots: chains of faults that chance alone hardly ever brings about, each with its details drawn.

Every plot leaves the network whole and all replicas running, and may be followed by any other.
"""

from collections.abc import Callable

from holdfast.raft.messages import Append, AppendReply, Message, RequestVote
from tests.simulation.raft_checks import Violation
from tests.simulation.raft_faults import change_the_disks, change_the_network, one_fault
from tests.simulation.raft_process import Process
from tests.simulation.raft_world import STUCK_S_MAX, TIMING, Faults, World

_HAND_OVER_S = 3 * TIMING.election_s_max + STUCK_S_MAX  # how long one may go on, if its last message is late
ELECTION_S = 3 * TIMING.election_s_max  # long enough for one, if it is possible at all


def make_peace(world: World) -> None:
    """All faults end."""
    world.release()
    world.faults = Faults()
    world.is_quiet = world.timeouts_agree = False
    for process in world.processes.values():
        process.slow_s = process.gather_s_max = 0.0
        process.saves, process.is_disk_full = True, False
        process.set_clock_rate(1.0)
        process.set_may_campaign(True)
        process.start()


def a_leader(world: World) -> Process | None:
    """Whoever leads, once somebody does and has committed something."""
    world.run_until(lambda: (leader := world.leader()) is not None and _serves(leader), ELECTION_S)
    return world.leader()


def _serves(process: Process) -> bool:
    return process.engine is not None and process.engine.serves


def _others(leader: Process) -> list[str]:
    """The other voters, as the leader knows them, as far as they exist."""
    assert leader.engine is not None
    return [
        name for name in leader.engine.configuration.voters if name in leader.world.processes and name != leader.name
    ]


def _minority(leader: Process) -> list[str]:
    """As many others as a leader may have on its side without a majority."""
    others = _others(leader)
    return leader.world.draw.sample(others, len(others) // 2)


def free_mix(world: World) -> None:
    """Whatever comes."""
    turmoil(world)
    make_peace(world)


def turmoil(world: World) -> None:
    """Faults that do not end by themselves."""
    for _ in range(world.draw.randint(4, 12)):
        one_fault(world)
        world.run(world.draw.uniform(0, 0.4))


def two_down(world: World) -> None:
    """Crashes that overlap; at most the whole cluster is down."""
    draw = world.draw
    victims = draw.sample(world.names, draw.randint(2, len(world.names)))
    for name in victims:
        world.processes[name].crash()
        world.run(draw.uniform(0, 0.1))
    draw.shuffle(victims)
    for name in victims:
        world.processes[name].start()
        world.run(draw.uniform(0, 0.4))


def leader_cut_off(world: World) -> None:
    """A leader writes what nobody gets, others go on without it, and it comes back, perhaps after a crash."""
    draw, leader = world.draw, a_leader(world)
    if leader is None:
        return
    with_it = _minority(leader) if draw.random() < 0.5 else []
    hears, has_slow_clock = draw.random() < 0.3, draw.random() < 0.3
    if has_slow_clock:
        leader.set_clock_rate(0.3)  # it thinks that it leads while another does
    world.isolate([leader.name, *with_it], hears=hears)
    for _ in range(draw.randint(1, 10)):
        world.propose()
    world.run(draw.uniform(0, TIMING.silence_s_max))
    if draw.random() < 0.5:
        leader.crash()
    world.run_until(lambda: world.leader() not in (leader, None), ELECTION_S)
    if not has_slow_clock and world.now_s > world.handed_over_s + _HAND_OVER_S:
        _check_stepped_down(world, leader)
    world.run(draw.uniform(0, 0.5))
    leader.start()
    if draw.random() < 0.5:
        change_the_network(world)
    world.faults.cut.clear()
    world.run(draw.uniform(0.1, 1.0))
    make_peace(world)


def _check_stepped_down(world: World, leader: Process) -> None:
    """A leader that hears no majority steps down before another can be elected."""
    can_act = not leader.frozen and not leader.paused
    if leader.leads and can_act and world.leader() is not leader:
        raise Violation(f"{leader.name} still leads, though another does")


def follower_cut_off(world: World) -> None:
    """One that was away disturbs nobody when it comes back."""
    draw = world.draw
    world.run(STUCK_S_MAX)  # what is still under way arrives
    is_settled = world.run_until(world.operator.is_settled, ELECTION_S)
    world.run(max(0.0, world.handed_over_s + _HAND_OVER_S - world.now_s))
    leader = a_leader(world)
    if leader is None or leader.engine is None or not is_settled or any(process.paused for process in world.alive()):
        return
    term = leader.engine.term
    world.isolate([draw.choice(_others(leader))])
    world.run(draw.uniform(1, 3) * TIMING.election_s_max)
    world.faults.cut.clear()
    world.run(draw.uniform(0, 2))
    if not leader.leads or leader.engine is None or leader.engine.term != term:
        raise Violation(f"{leader.name} of term {term} does not lead any more, because one was cut off")


def leaders_that_cannot_speak(world: World) -> None:
    """A leader writes what nobody gets and is gone; so does the next. The first comes back, leads and copies what it
    wrote then, but nothing of its new term; and is gone when the second comes back. (Figure 8 of the Raft paper.)"""
    draw, first = world.draw, a_leader(world)
    if first is None:
        return
    world.is_quiet = True
    world.faults.holds = lambda _from, _to, message: isinstance(message, Append) and bool(message.entries)
    for _ in range(draw.randint(1, 3)):
        world.propose(is_long=True)
    world.run(draw.uniform(0.02, 0.1))
    first.crash()
    world.run_until(lambda: world.leader() is not None, ELECTION_S)
    second = world.leader()
    world.run(draw.uniform(0.02, 0.1))
    if second is not None:
        second.crash()
        world.faults.holds = _has_own_entries
        _start_impatient(world, first)
        if world.run_until(lambda: first.leads, ELECTION_S):
            world.run(draw.uniform(0.1, 0.4))
        first.crash()
        _start_impatient(world, second)
        world.run_until(lambda: world.leader() is not None, ELECTION_S)
    world.drop_held_back()
    make_peace(world)


def _start_impatient(world: World, process: Process) -> None:
    """Starts it and slows the clocks of the others: it is the first to ask for votes."""
    for other in world.alive():
        other.set_clock_rate(0.4)
    process.set_clock_rate(1.0)
    process.start()


def _has_own_entries(_from: str, _to: str, message: Message) -> bool:
    return isinstance(message, Append) and any(entry.term == message.term for entry in message.entries)


def answers_that_come_late(world: World) -> None:
    """A leader's answers are kept back until it leads again, in another term and with another log."""
    draw, leader = world.draw, a_leader(world)
    if leader is None:
        return
    name = leader.name
    late = _minority(leader)
    world.is_quiet = True
    world.run_until(lambda: not leader.frozen, 0.1)
    leader.slow_s = draw.choice([0.1, 0.3])
    world.faults.holds = lambda sender, to, message: (
        isinstance(message, AppendReply) and to == name and sender in late and message.success
    )
    world.isolate([name, *late])
    world.propose_together(draw.randint(5, 20))
    world.run(draw.uniform(0.05, 0.2))
    leader.crash()
    leader.slow_s = 0.0
    world.faults.cut.clear()
    world.isolate(late)
    _start_impatient(world, leader)
    if world.run_until(lambda: (new := world.leader()) is not None and _serves(new), 2 * ELECTION_S):
        _bring_back(world, name)
    world.faults.cut.clear()
    world.isolate([name], hears=True)
    for _ in range(draw.randint(1, 5)):
        world.propose()
    world.run(draw.uniform(0.02, 0.1))
    world.release()
    world.run(draw.uniform(0.05, 0.3))
    if draw.random() < 0.5:
        leader.crash()
    make_peace(world)


def requests_that_come_late(world: World) -> None:
    """What a leader sent comes when it leads again. Then it is cut off, and asked for current reads."""
    draw, leader = world.draw, a_leader(world)
    if leader is None or leader.engine is None:
        return
    name, term = leader.name, leader.engine.term
    world.faults.holds = lambda sender, _to, message: (
        isinstance(message, Append) and sender == name and message.term <= term
    )
    world.run(draw.uniform(0.05, TIMING.silence_s_max))
    leader.crash()
    world.is_quiet = True
    _start_impatient(world, leader)
    if world.run_until(lambda: (new := world.leader()) is not None and _serves(new), 2 * ELECTION_S):
        _bring_back(world, name)
    world.release()
    world.run(draw.uniform(0.02, 0.2))
    make_peace(world)
    slow_clock(world)


def split_votes(world: World) -> None:
    """All lose patience at the same time, and votes come twice."""
    draw = world.draw
    world.is_quiet = world.timeouts_agree = True
    world.faults.doubled, world.faults.shuffled = 0.8, True
    world.faults.latency_s_max = draw.choice([0.05, 0.1, 0.2])
    for process in world.processes.values():
        process.crash()
    for process in world.processes.values():
        process.start()
    world.run(draw.uniform(2, 4) * TIMING.election_s_max)
    make_peace(world)


def _bring_back(world: World, name: str) -> None:
    """Makes a replica lead again, if it can be done."""
    for _ in range(10):
        leader = world.leader()
        if leader is not None and leader.name == name:
            return
        if leader is not None:
            world.hand_over(leader, name)
        world.run(0.1)


def restart_storm(world: World) -> None:
    """All replicas crash and come back again and again, in the middle of elections, with messages doubled."""
    draw = world.draw
    world.faults.doubled, world.faults.sync_s_max = 0.5, draw.choice([0.01, 0.1])
    world.faults.latency_s_max = draw.choice([0.02, 0.1])
    for _ in range(draw.randint(3, 8)):
        for process in world.processes.values():
            if draw.random() < 0.4:
                process.crash()
        world.run(draw.uniform(0, 0.1))
        for process in world.down():
            process.start()
        world.run(draw.uniform(0, 1.5 * TIMING.election_s_max))
    make_peace(world)


def slow_leader(world: World) -> None:
    """The disk of the leader is slow, or it works on while it waits; then it loses power."""
    draw, leader = world.draw, a_leader(world)
    if leader is None:
        return
    leader.gather_s_max = draw.choice([0.05, 0.2])
    leader.slow_s = draw.choice([0.0, 0.1])
    reachable = _minority(leader)
    world.isolate([leader.name, *reachable])
    world.run(draw.uniform(0.1, 0.5))
    for name in [leader.name, *reachable]:
        world.processes[name].crash()
    world.faults.cut.clear()
    leader.start()
    world.run_until(lambda: world.leader() is not None, ELECTION_S)
    world.run(draw.uniform(0.0, 0.3))
    make_peace(world)


def paused_leader(world: World) -> None:
    """The leader is stopped; it goes on as if nothing had happened, while another one leads."""
    draw, leader = world.draw, a_leader(world)
    if leader is not None:
        leader.pause(draw.uniform(0.2, 3.0))
        if draw.random() < 0.5:
            change_the_disks(world)
        world.run(draw.uniform(0.2, 3.0))
    make_peace(world)


def hand_over(world: World) -> None:
    """From one to the next, with work under way."""
    draw = world.draw
    for _ in range(draw.randint(1, 4)):
        leader = a_leader(world)
        if leader is not None:
            world.hand_over(leader, draw.choice(world.names))
        world.run(draw.uniform(0, 0.4))


def lost_disk(world: World) -> None:
    """A node comes back without its disk; it is replaced, whatever happens meanwhile. It may have had the last copy
    but one of what was acknowledged, with the only other one at a leader that is gone."""
    if not world.run_until(world.operator.is_settled, ELECTION_S):
        return
    draw, leader = world.draw, world.leader()
    name = draw.choice(sorted(world.operator.wanted))
    if leader is not None and leader.name != name and draw.random() < 0.6:
        others = [other for other in _others(leader) if other != name]
        world.isolate(others[: len(world.operator.wanted) // 2])
        world.run(draw.uniform(0.1, 0.4))
        leader.crash()
    new = world.lose_disk(name)
    world.operator.wanted = world.operator.wanted - {name} | {new.name}
    world.faults.cut.clear()
    new.start()
    world.run(draw.choice([0.0, ELECTION_S / 2]))
    _trouble(world)


def change_members(world: World) -> None:
    """Another replica joins, or one leaves, perhaps the leader."""
    if not world.run_until(world.operator.is_settled, ELECTION_S):
        return
    draw, wanted = world.draw, world.operator.wanted
    outside = [name for name in world.names if name not in wanted]
    if outside and (len(wanted) <= 3 or draw.random() < 0.5):
        world.operator.wanted = wanted | {draw.choice(outside)}
    elif len(wanted) > 3:
        world.operator.wanted = wanted - {draw.choice(sorted(wanted))}
    _trouble(world)


def wiped_and_wanted_again(world: World) -> None:
    """A replica is removed, deleted, and comes back under its old name. What it said before comes last."""
    draw, leader = world.draw, a_leader(world)
    if leader is None or not world.operator.is_settled() or not _others(leader):
        return
    name, to = draw.choice(_others(leader)), leader.name
    if draw.random() < 0.7:
        world.faults.holds = lambda sender, receiver, message: (
            isinstance(message, AppendReply) and (sender, receiver) == (name, to)
        )
    world.run(draw.uniform(0.05, 0.3))
    world.operator.wanted = world.operator.wanted - {name}
    if world.run_until(lambda: world.may_be_wiped(name), ELECTION_S):
        world.wipe(name).start()
    world.operator.wanted = world.operator.wanted | {name}
    world.run_until(lambda: leader.engine is not None and name in leader.engine.configuration.members, 1.0)
    world.release()
    world.run(draw.uniform(0, 0.3))
    _trouble(world)


def removed_while_one_was_away(world: World) -> None:
    """One is away while two are removed, of which one is deleted. Then it meets just those two: all three go by a
    configuration in which they are a majority."""
    if not world.run_until(world.operator.is_settled, ELECTION_S):
        return
    draw, leader = world.draw, world.leader()
    if leader is None or len(_others(leader)) < 4:
        return
    away, *leaving = draw.sample(_others(leader), 3)
    world.isolate([away])
    for name in leaving:
        world.operator.wanted = world.operator.wanted - {name}
        if not world.run_until(world.operator.is_settled, ELECTION_S):
            break
    world.run(draw.uniform(0, 0.2))
    for name in draw.sample(leaving, draw.choice([1, 1, 2])):
        if world.may_be_wiped(name):
            world.wipe(name).start()
    world.faults.cut.clear()
    world.isolate([away, *leaving])
    world.run(ELECTION_S)
    world.operator.wanted = world.operator.wanted | set(leaving)
    make_peace(world)


def wiped_between_two_votes(world: World) -> None:
    """Two stand in the same term, and one vote is missing to each. Whoever gives it to the first is removed by it and
    deleted; then the question of the second arrives."""
    if not world.run_until(world.operator.is_settled, ELECTION_S):
        return
    draw, leader = world.draw, a_leader(world)
    if leader is None or len(_others(leader)) != 4:
        return
    first, second, friend, both = draw.sample(_others(leader), 4)

    def holds(sender: str, to: str, message: Message) -> bool:
        if isinstance(message, RequestVote):
            return (sender == second and to != friend) or (sender == first and to in (second, friend))
        return isinstance(message, Append) and to in (second, both)

    world.is_quiet = True
    world.run(0.2)  # both have everything: the leader can hand over to each
    world.processes[second].set_clock_rate(0.1)  # it waits long for an answer
    world.hand_over(leader, first)
    world.hand_over(leader, second)
    world.faults.holds = holds
    if world.run_until(lambda: world.processes[first].leads, 1.0):
        world.isolate([second, both])
        world.operator.wanted = world.operator.wanted - {both}
        if world.run_until(lambda: world.may_be_wiped(both), ELECTION_S):
            world.wipe(both).start()
        world.release(lambda sender, to: (sender, to) == (second, both))
        world.run(draw.uniform(0.1, 0.5))
        world.operator.wanted = world.operator.wanted | {both}
    world.drop_held_back()
    make_peace(world)


def change_cut_off(world: World) -> None:
    """A leader begins a change that nobody hears of; the next one begins another. The first comes back."""
    draw, leader = world.draw, a_leader(world)
    outside = [name for name in world.names if name not in world.operator.wanted]
    if leader is None or not outside or not world.operator.is_settled():
        return
    world.isolate([leader.name, *_minority(leader)])
    world.operator.wanted = world.operator.wanted | {draw.choice(outside)}
    world.run(draw.uniform(0.3, 0.5))
    world.run_until(lambda: world.leader() not in (leader, None), ELECTION_S)
    if draw.random() < 0.5:
        leader.crash()
        leader.start()
    world.run(draw.uniform(0, 0.5))
    make_peace(world)
    _bring_back(world, leader.name)


def _trouble(world: World) -> None:
    """While members change."""
    draw = world.draw
    for _ in range(draw.randint(0, 4)):
        world.run(draw.uniform(0, 0.5))
        one_fault(world)
    world.run(draw.uniform(0, 0.5))
    make_peace(world)


def far_behind(world: World) -> None:
    """A replica is away until the others' logs no longer have what it lacks. Its snapshot may not survive a crash, and
    may come again when the log is further."""
    draw, leader = world.draw, a_leader(world)
    if leader is None or not _others(leader):
        return
    process = world.processes[draw.choice(_others(leader))]
    process.crash()
    world.faults.late_snapshots = draw.random() < 0.6
    world.run(draw.uniform(0.3, 1.0))
    for other in world.alive():
        if not other.frozen:
            other.disk.save(other.state)
        other.compact_to = other.state.index
    world.run(draw.uniform(0, 0.3))
    process.saves = False
    process.start()
    for _ in range(draw.randint(0, 5)):
        if world.run_until(lambda: process.disk.installed is not None, draw.uniform(0.2, 1.0)):
            world.run(draw.choice([0.0, 0.01, 0.2, 0.4]))
        process.crash()
        process.start()
        world.isolate([process.name])
        world.repeat_snapshots()
        world.run(0.02)
        world.faults.cut.clear()
    world.run(draw.uniform(0, 1.0))
    make_peace(world)


def full_disks(world: World) -> None:
    """There is no room on some disks for a while; what was sent before that was known cannot be taken back."""
    draw = world.draw
    for _ in range(draw.randint(1, 4)):
        for process in world.processes.values():
            process.is_disk_full = draw.random() < 0.3
        world.run(draw.uniform(0, 0.4))
    make_peace(world)


def slow_clock(world: World) -> None:
    """The clock of a leader is slow: it thinks that it leads when another does, and is asked for current reads."""
    leader = a_leader(world)
    if leader is None:
        return
    leader.set_clock_rate(0.1)
    world.isolate([leader.name])
    world.run_until(
        lambda: (new := world.leader()) not in (leader, None) and new is not None and _serves(new), ELECTION_S
    )
    world.run(world.draw.uniform(0, 0.5))
    for process in world.alive():
        process.wants_read = True
    world.run(world.draw.uniform(0.1, 0.5))
    make_peace(world)


PLOTS: dict[Callable[[World], None], int] = {
    free_mix: 8,
    two_down: 2,
    leader_cut_off: 3,
    follower_cut_off: 1,
    leaders_that_cannot_speak: 3,
    answers_that_come_late: 3,
    restart_storm: 2,
    requests_that_come_late: 2,
    split_votes: 2,
    slow_leader: 2,
    paused_leader: 2,
    hand_over: 1,
    lost_disk: 3,
    change_members: 4,
    wiped_and_wanted_again: 3,
    removed_while_one_was_away: 2,
    wiped_between_two_votes: 2,
    change_cut_off: 2,
    far_behind: 3,
    slow_clock: 1,
    full_disks: 1,
}


def one_plot(world: World) -> None:
    [plot] = world.draw.choices(list(PLOTS), list(PLOTS.values()))
    plot(world)
