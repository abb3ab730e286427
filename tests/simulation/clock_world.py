"""A group whose clocks drift, jump and lie, whose frames are late or lost, and whose leaders come and go.

Only time is simulated: an entry is on every reachable node at once, and who becomes leader is drawn among those whom
Raft could elect. What is checked at every tick is the shard time of the leader, against the clocks that do not lie.
"""

import heapq
import random
from collections.abc import Sequence

from holdfast.broker.leader.clock import (
    AGREEMENT_MS,
    FAST_PPM,
    STEP_MS,
    STEP_PATIENCE_MS,
    Continued,
    ShardClock,
    Witnesses,
    carried_on,
)
from holdfast.broker.leader.clock_evidence import BUCKET_MS, ClockEvidence, ClockFitness, GroupEvidence

START_MS = 1_700_000_000_000
DAY_MS = 24 * 60 * 60 * 1000
TICK_MS = 50
HEARTBEAT_MS = 100
BEACON_MS = 1000  # even nodes that have nothing to say to each other send a frame so often
SILENCE_MS = 450  # a leader that does not reach a majority for so long steps down
DRIFT_PPM_MAX = 200
SKEW_MS_MAX = 100  # of a clock that does not lie
DELAY_MS_MAX = 600

AHEAD_MS_MAX = 150  # of the fastest honest clock: what monotonic clocks drift apart while nobody can tell the time
# Of the slowest honest clock, once a majority has agreed for a while: a step is not worth it, and frames are late.
BEHIND_MS_MAX = STEP_MS + AGREEMENT_MS + DELAY_MS_MAX
SETTLED_MS = STEP_PATIENCE_MS + 2 * BUCKET_MS
# How fast shard time may run by anybody's clock, and how much a duration may be short of that: whole milliseconds.
PACE_MAX = 1 + (FAST_PPM + 2 * DRIFT_PPM_MAX) / 1e6
SHORT_MS_MAX = 5
# The same for what lasts beyond a leader that had just been started and knew of no time: it asks the clocks.
FORGOTTEN_MS_MAX = 2 * SKEW_MS_MAX + AHEAD_MS_MAX


class Machine:
    """The clocks of one machine; a TimeSource."""

    def __init__(self, draw: random.Random) -> None:
        self.true_ms = 0.0
        self._rate = 1 + draw.uniform(-DRIFT_PPM_MAX, DRIFT_PPM_MAX) / 1e6
        self._booted_ms = -draw.uniform(0, DAY_MS)
        self.off_ms = draw.uniform(-SKEW_MS_MAX, SKEW_MS_MAX)

    def wall_ms(self) -> float:
        return START_MS + self.true_ms * self._rate + self.off_ms

    def monotonic_ms(self) -> float:
        return (self.true_ms - self._booted_ms) * self._rate

    def reboot(self) -> None:
        self._booted_ms = self.true_ms


class Member:
    """One node: what it knows, and what a crash takes away."""

    def __init__(self, name: str, voters: Sequence[str], draw: random.Random) -> None:
        self.name = name
        self.voters = voters
        self.machine = Machine(draw)
        self.up_at_ms = 0.0  # down or suspended until then
        self.log_ms = 0  # time of the newest entry in its log
        self.applied_ms = 0
        self.forget()

    def forget(self) -> None:
        self.evidence = ClockEvidence(self.machine)
        self.group = GroupEvidence(self.evidence, lambda: self.voters, self.name)
        self.fitness = ClockFitness(self.machine)
        self.fit = True
        self.heard_leader_ms = 0
        self.heard_term = 0
        self.heard_at_ms = 0.0

    def hear_leader(self, term: int, leader_ms: int) -> None:
        """What the newest leader said counts: by that everything was counted since."""
        if leader_ms and (term, leader_ms) > (self.heard_term, self.heard_leader_ms):
            self.heard_leader_ms, self.heard_term = leader_ms, term
            self.heard_at_ms = self.machine.monotonic_ms()

    def note_own_time(self, term: int, shard_ms: int) -> None:
        """It leads: it may lead again, and nobody in between."""
        self.hear_leader(term, shard_ms)

    def continued(self) -> Continued:
        return carried_on(self.heard_leader_ms, self.machine.monotonic_ms() - self.heard_at_ms)

    def witnesses(self) -> Witnesses | None:
        return self.group

    def start_clock(self) -> ShardClock:
        """As a node does that won an election: what it has in its log it applies before it serves."""
        clock = ShardClock(self.machine, self.applied_ms, continued=self.continued(), witnesses=self.witnesses())
        clock.not_before(self.log_ms)
        return clock


class ClockWorld:
    def __init__(self, seed: int, nodes: int, member: type[Member] = Member) -> None:
        self.draw = random.Random(f"{seed}/{nodes}")
        names = [f"n{number}" for number in range(nodes)]
        self.members = {name: member(name, names, self.draw) for name in names}
        self.liars = set(self.draw.sample(names, (nodes - 1) // 2))
        self.delays_ms = {(a, b): self.draw.uniform(0.2, 80) for a in names for b in names}
        self.cut: set[str] = set()
        self.now_ms = 0.0
        self.frames: list[tuple[float, int, str, str, float, int, int]] = []  # a heap by time of arrival
        self.frames_sent = 0
        self.leader: Member | None = None
        self.clock: ShardClock | None = None
        self.shard_ms = 0  # what the leader's clock showed at the last tick
        self._ticked_ms = 0.0  # when that was
        self._seen: ClockEvidence | None = None  # the leader's; a crash takes it away and with it the office
        self.elect_at_ms = 500.0
        self.reached_ms = 0.0  # when the leader last reached a majority
        self.committed_ms = 0
        self.agreed_since_ms: float | None = None
        self.leaders: list[str] = []
        self.steps = 0
        self.checked_behind = 0
        self.changes_checked = 0  # of leaders, without a step
        self._least_ms: float | None = None  # shard time minus true time at that pace, at the least so far
        self._checked_leaders = 0
        self._short_ms_max = SHORT_MS_MAX

    # --- what happens ---------------------------------------------------------------------------------------------

    def run(self, for_ms: int, *, faults: bool = True) -> None:
        for _ in range(for_ms // TICK_MS):
            self.now_ms += TICK_MS
            for member in self.members.values():
                member.machine.true_ms = self.now_ms
            if faults and self.draw.random() < 0.02:
                self._harm()
            self._deliver()
            self._send()
            self._lead()
            self._check()

    def heal(self) -> None:
        self.cut.clear()
        for member in self.members.values():
            member.up_at_ms = min(member.up_at_ms, self.now_ms)
            if member.name in self.liars:
                member.machine.off_ms = 0.0

    def _harm(self) -> None:
        victim = self.draw.choice(list(self.members.values()))
        kind = self.draw.randrange(7)
        if kind <= 1 and self.liars:
            liar = self.members[self.draw.choice(sorted(self.liars))].machine
            liar.off_ms = self.draw.choice(
                [self.draw.uniform(-3000, 3000), liar.off_ms + 300, 365 * DAY_MS, -365 * DAY_MS, DAY_MS, 0.0]
            )
        elif kind == 2:
            self._stop(victim, crash=True)
        elif kind == 3:
            self._stop(victim, crash=False)
        elif kind == 4:
            self.cut = set(self.draw.sample(list(self.members), self.draw.randint(0, len(self.members) // 2)))
        elif kind == 5:
            self.delays_ms[victim.name, self.draw.choice(list(self.members))] = self.draw.uniform(0.2, DELAY_MS_MAX)
        elif self.draw.random() < 0.1:
            for member in self.members.values():
                self._stop(member, crash=True)

    def _stop(self, member: Member, *, crash: bool) -> None:
        member.up_at_ms = self.now_ms + self.draw.choice([200, 1000, 5000, 30_000])
        if crash:
            member.applied_ms = member.log_ms  # its log is replayed at the start
            member.forget()
            if self.draw.random() < 0.3:
                member.machine.reboot()

    def _up(self, name: str) -> bool:
        return self.members[name].up_at_ms <= self.now_ms

    def _reachable(self, name: str) -> list[str]:
        """The node itself included."""
        if not self._up(name):
            return []
        return [other for other in self.members if other == name or (self._up(other) and not self.cut & {name, other})]

    def _is_majority(self, names: Sequence[str]) -> bool:
        return len(names) > len(self.members) // 2

    # --- frames ---------------------------------------------------------------------------------------------------

    def _send(self) -> None:
        leader = self.leader
        for name in self.members:
            for other in self._reachable(name):
                to_or_from_leader = leader is not None and leader.name in (name, other)
                every_ms = HEARTBEAT_MS if to_or_from_leader else BEACON_MS
                if other != name and self.now_ms % every_ms == 0:
                    self._post(name, other, self.shard_ms if leader is not None and leader.name == name else 0)

    def _post(self, sender: str, receiver: str, leader_ms: int) -> None:
        delay_ms = self.delays_ms[sender, receiver] + (self.draw.uniform(0, 400) if self.draw.random() < 0.1 else 0)
        arrival_ms = self.now_ms + delay_ms
        wall_ms = self.members[sender].machine.wall_ms()
        self.frames_sent += 1
        term = len(self.leaders)
        heapq.heappush(self.frames, (arrival_ms, self.frames_sent, sender, receiver, wall_ms, term, leader_ms))

    def _deliver(self) -> None:
        """To a node that is suspended a frame comes when it wakes up."""
        waiting = []
        while self.frames and self.frames[0][0] <= self.now_ms:
            frame = heapq.heappop(self.frames)
            _, _, sender, receiver, wall_ms, term, leader_ms = frame
            if not self._up(receiver):
                waiting.append((self.members[receiver].up_at_ms, *frame[1:]))
                continue
            self.members[receiver].evidence.note(sender, wall_ms)
            self.members[receiver].hear_leader(term, leader_ms)
        for frame in waiting:
            heapq.heappush(self.frames, frame)

    # --- leaders --------------------------------------------------------------------------------------------------

    def _lead(self) -> None:
        for member in self.members.values():
            if self._up(member.name):
                member.fit = member.fitness.may_lead(member.group.off_by_ms())
        if self.leader is None:
            if self.now_ms >= self.elect_at_ms:
                self._elect()
            return
        reachable = self._reachable(self.leader.name)
        if self._is_majority(reachable):
            self.reached_ms = self.now_ms
        if self.now_ms - self.reached_ms > SILENCE_MS or not self.leader.fit or self.leader.evidence is not self._seen:
            self.leader = self.clock = None
            self.elect_at_ms = self.now_ms + self.draw.uniform(50, 1000)
            return
        if self._is_majority(reachable):
            self._work()

    def _elect(self) -> None:
        candidates = [
            member for member in self.members.values()
            if member.fit and member.log_ms >= self.committed_ms and self._is_majority(self._reachable(member.name))
        ]  # fmt: skip
        if not candidates:
            return
        self.leader = leader = self.draw.choice(candidates)
        for voter in self._reachable(leader.name):  # their votes
            if voter != leader.name:
                late_ms = self.delays_ms[voter, leader.name]
                leader.evidence.note(voter, self.members[voter].machine.wall_ms() - late_ms)
        self._seen = leader.evidence
        self.reached_ms = self.now_ms
        self.clock = leader.start_clock()
        self.shard_ms = self.clock.now_ms()
        assert self.shard_ms >= leader.heard_leader_ms, "shard time went back behind what the new leader had heard"
        self.leaders.append(leader.name)
        self._short_ms_max = SHORT_MS_MAX if leader.heard_leader_ms else FORGOTTEN_MS_MAX
        leader.note_own_time(len(self.leaders), self.shard_ms)
        if self.clock.started_by_step:
            self._stepped()
        self.agreed_since_ms = None
        self._commit(self.shard_ms)

    def _work(self) -> None:
        assert self.clock is not None
        assert self.leader is not None
        before_ms, self.shard_ms = self.shard_ms, self.clock.now_ms()
        self.leader.note_own_time(len(self.leaders), self.shard_ms)
        slept_ms = self.now_ms - self._ticked_ms
        assert 0.899 * slept_ms - 1 <= self.shard_ms - before_ms <= PACE_MAX * slept_ms + 1, "shard time left its pace"
        wanted_ms = self.clock.step_wanted_ms()
        if wanted_ms is not None:
            self._stepped()
            self._commit(wanted_ms)
            self.clock.stepped(wanted_ms)
            self.shard_ms = self.clock.now_ms()
        elif self.draw.random() < 0.2:
            self._commit(self.shard_ms)

    def _stepped(self) -> None:
        """Durations may be short by as much as the time was moved."""
        self.steps += 1
        self._least_ms = None

    def _commit(self, entry_ms: int) -> None:
        """The entry is on all nodes that the leader reaches, and with it what time it was; they apply it sooner or
        later."""
        assert self.leader is not None
        assert entry_ms >= self.committed_ms, "an entry is older than the one before it"
        self.committed_ms = entry_ms
        for name in self._reachable(self.leader.name):
            member = self.members[name]
            member.applied_ms = member.log_ms if self.draw.random() < 0.5 else entry_ms
            member.log_ms = entry_ms
            if member is not self.leader:
                member.hear_leader(len(self.leaders), self.shard_ms)

    # --- what must hold -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.leader is None or self.reached_ms != self.now_ms:
            return
        self._ticked_ms = self.now_ms
        self._check_durations()
        honest = [member.machine.wall_ms() for name, member in self.members.items() if name not in self.liars]
        assert self.shard_ms <= max(honest) + AHEAD_MS_MAX, f"early by {self.shard_ms - max(honest)} ms"
        found = self.leader.group.median_range()
        if found is None or not found.agreed:
            self.agreed_since_ms = None
        elif self.agreed_since_ms is None:
            self.agreed_since_ms = self.now_ms
        elif self.now_ms - self.agreed_since_ms >= SETTLED_MS:
            self.checked_behind += 1
            assert self.shard_ms >= min(honest) - BEHIND_MS_MAX, f"late by {min(honest) - self.shard_ms} ms"

    def _check_durations(self) -> None:
        """Whatever began at some moment, under some leader, and takes a time of the shard, takes as long for others.
        Nothing is early by a producer's clock, no lease short by a worker's."""
        off_ms = self.shard_ms - self.now_ms * PACE_MAX
        if self._least_ms is not None:
            short_ms = off_ms - self._least_ms
            assert short_ms <= self._short_ms_max, f"a duration is short by {short_ms} ms"
            self.changes_checked += len(self.leaders) > self._checked_leaders
        if self._least_ms is None or off_ms < self._least_ms or self._short_ms_max > SHORT_MS_MAX:
            self._least_ms = off_ms
        self._short_ms_max = SHORT_MS_MAX
        self._checked_leaders = len(self.leaders)
