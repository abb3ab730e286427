"""Plays a trace: commands in, and out of it the messages that replicas send and the states that change.

A file of `traces/` has scenes, which begin with `== title`. In a scene a command is followed by `----` and what came of
it. Each message is printed once, when it leaves its sender: `a -> b  ...`; promises leave with a `sync`. Then
come the replicas that are not as they were after the last command.

    group abc blank=d          new replicas; all that a, b and c know is entry 1, which names them; d knows nothing
    log a 112 term=3           a has entries of these terms after entry 1, and starts
    elect a / serve a          a becomes the leader; `serve`: and its first entry is applied everywhere. Only states are
                               printed. `among=ab`: the others hear nothing, here and in `deliver`
    wait 0.5 / tick a 0.5      time passes; a looks at the clock
    propose a x / replicate a  a command enters a's log; a sends what others lack
    sync a                     what a has staged is durable
    deliver                    what is on its way arrives, and so on until nobody says anything. Whoever gets a message
                               syncs, but with `sync=no`
    lose to=c                  what is on its way is lost: all, or `from=` and `to=` a replica
    give b a <message>         b gets a message of a, as it is printed
    apply a                    a applies what is committed
    restart a / wipe a         a crashes and comes back; or it was deleted, and is blank but for what it promised
    hand-over a b              a begins to make b the leader
    read a / may-read a        a read begins; whether it has been confirmed
    add a d / promote a d / remove a d    the leader a changes the members, or says why not
    compact a 4 / snapshot a b            a's log begins after entry 4; b installs a state that ends there
    beat a / overhear          signs of life that are due leave; all hear that senders live, and nothing arrives
    peers a                    what the leader a knows of the others
"""

from collections.abc import Callable

from holdfast.raft.codec import encode, peek
from holdfast.raft.engine import ShardRaft
from holdfast.raft.library import CANDIDATE, FOLLOWER, LEADER
from holdfast.raft.membership import ChangeRefusedError
from holdfast.raft.messages import ImpossibleMessageError
from tests.unit.raft.raft_stage import Stage
from tests.unit.raft.trace_messages import members_text, message_text, parse_message

TITLE, OUTPUT = "== ", "----"
_ROLES = {FOLLOWER: "follower", CANDIDATE: "candidate", LEADER: "leader"}


def scenes(text: str) -> list[str]:
    """The scenes of a file; what it says of itself goes with the first."""
    first, *others = text.split(f"\n{TITLE}")
    return [first, *(f"\n{TITLE}{scene}" for scene in others)]


def play(scene: str, engine: type[ShardRaft] = ShardRaft) -> str:
    """A scene as it comes out; the same text if nothing is different."""
    stage = TracedStage(engine)
    played: list[str] = []
    is_output = False
    for line in scene.split("\n"):
        is_output = line == OUTPUT or (is_output and bool(line))
        if line == OUTPUT:
            command = played[-1]
            played += [line, *stage.play(command)]
        elif not is_output:  # otherwise it is what came of it the last time
            played.append(line)
    return "\n".join(played)


class TracedStage:
    """A stage that takes commands and prints what happens on it; `group` sets it up."""

    _stage: Stage

    def __init__(self, engine: type[ShardRaft]) -> None:
        self._engine = engine
        self._shown: dict[str, str] = {}
        self._out: list[str] = []
        self._reading: int | None = None

    def play(self, command: str) -> list[str]:
        """One command; what comes of it."""
        self._out = []
        name, *words = command.split()
        if name == "give":
            self._give(*words)
        else:
            act: Callable[[list[str], dict[str, str]], None] = getattr(self, f"_do_{name.replace('-', '_')}")
            act([word for word in words if "=" not in word], dict(word.split("=", 1) for word in words if "=" in word))
        self._collect()
        self._show_states()
        return self._out

    # --- what is printed --------------------------------------------------------------------------------------

    def _collect(self) -> None:
        """What was said, in order, is on its way now."""
        stage = self._stage
        for name in stage.engines:
            before = len(stage.on_the_way)
            stage.collect(name)
            self._print_sent(before)

    def _print_sent(self, before: int) -> None:
        for sender, to, message in self._stage.on_the_way[before:]:
            self._out.append(f"{sender} -> {to}  {message_text(message)}")

    def _show_states(self) -> None:
        for name, engine in self._stage.engines.items():
            state = _state(engine)
            if self._shown.get(name) != state:
                self._shown[name] = state
                self._out.append(f"{name}  {state}")

    # --- commands ---------------------------------------------------------------------------------------------

    def _do_group(self, names: list[str], options: dict[str, str]) -> None:
        self._stage = Stage(self._engine, names[0], empty=options.get("blank", ""))
        self._shown = {name: _state(engine) for name, engine in self._stage.engines.items()}

    def _do_log(self, words: list[str], options: dict[str, str]) -> None:
        term = options.get("term")
        self._stage.write_log(words[0], words[1], term=None if term is None else int(term))

    def _do_elect(self, names: list[str], options: dict[str, str]) -> None:
        self._stage.elect(names[0], options.get("among", ""))

    def _do_serve(self, names: list[str], options: dict[str, str]) -> None:
        self._stage.serve(names[0], options.get("among", ""))

    def _do_wait(self, words: list[str], _: dict[str, str]) -> None:
        self._stage.now_s += float(words[0])

    def _do_tick(self, words: list[str], _: dict[str, str]) -> None:
        self._stage.now_s += float(words[1]) if len(words) > 1 else 0.0
        self._stage[words[0]].tick(self._stage.now_s)

    def _do_propose(self, words: list[str], _: dict[str, str]) -> None:
        if self._stage[words[0]].propose(words[1].encode()) is None:
            self._out.append("not taken")

    def _do_replicate(self, names: list[str], _: dict[str, str]) -> None:
        self._stage[names[0]].replicate()

    def _do_sync(self, names: list[str], _: dict[str, str]) -> None:
        before = len(self._stage.on_the_way)
        self._stage.sync(names[0])
        self._print_sent(before)

    def _do_deliver(self, _: list[str], options: dict[str, str]) -> None:
        stage, among = self._stage, options.get("among", "abcdefgh")
        arriving = [message for message in stage.on_the_way if message[0] in among and message[1] in among]
        while arriving:
            stage.on_the_way.remove(arriving[0])
            sender, to, message = arriving.pop(0)
            before = len(stage.on_the_way)
            stage.give(to, sender, message)
            stage.collect(to)
            if options.get("sync") != "no":
                stage.sync(to)
            self._print_sent(before)
            arriving += [
                message for message in stage.on_the_way[before:] if message[0] in among and message[1] in among
            ]

    def _do_lose(self, _: list[str], options: dict[str, str]) -> None:
        self._stage.on_the_way = [
            (sender, to, message)
            for sender, to, message in self._stage.on_the_way
            if options.get("from", sender) != sender or options.get("to", to) != to
        ]

    def _give(self, to: str, sender: str, *message: str) -> None:
        try:
            self._stage.give(to, sender, parse_message(message))
        except ImpossibleMessageError as impossible:
            self._out.append(f"impossible: {impossible}")

    def _do_apply(self, names: list[str], _: dict[str, str]) -> None:
        engine = self._stage[names[0]]
        for entry in engine.committed(100):
            engine.applied(entry.index)

    def _do_restart(self, names: list[str], _: dict[str, str]) -> None:
        self._stage.restart(names[0])

    def _do_wipe(self, names: list[str], _: dict[str, str]) -> None:
        self._stage.wipe(names[0])

    def _do_hand_over(self, names: list[str], _: dict[str, str]) -> None:
        if not self._stage[names[0]].hand_over(names[1]):
            self._out.append("refused")

    def _do_read(self, names: list[str], _: dict[str, str]) -> None:
        self._reading = self._stage[names[0]].begin_read()
        self._out.append("refused" if self._reading is None else f"read {self._reading}")

    def _do_may_read(self, names: list[str], _: dict[str, str]) -> None:
        assert self._reading is not None
        self._out.append("yes" if self._stage[names[0]].may_read(self._reading) else "not yet")

    def _do_add(self, names: list[str], options: dict[str, str]) -> None:
        self._change(ShardRaft.add_member, names, options)

    def _do_promote(self, names: list[str], options: dict[str, str]) -> None:
        self._change(ShardRaft.promote, names, options)

    def _do_remove(self, names: list[str], options: dict[str, str]) -> None:
        self._change(ShardRaft.remove, names, options)

    def _change(self, change: Callable[[ShardRaft, str, int], int], names: list[str], options: dict[str, str]) -> None:
        leader = self._stage[names[0]]
        try:
            change(leader, names[1], int(options.get("version", leader.configuration.version)))
        except ChangeRefusedError as refused:
            self._out.append(f"refused: {refused.reason}")

    def _do_compact(self, words: list[str], _: dict[str, str]) -> None:
        self._stage[words[0]].compact(int(words[1]))

    def _do_snapshot(self, names: list[str], _: dict[str, str]) -> None:
        sender, journal = self._stage[names[0]], self._stage.journals[names[0]]
        configuration = journal.configurations[0][1]
        taken = self._stage[names[1]].install_snapshot(
            names[0], sender.term, journal.base_index, journal.base_term, configuration
        )
        if not taken:
            self._out.append("not needed")

    def _do_beat(self, names: list[str], _: dict[str, str]) -> None:
        self._stage[names[0]].beat(self._stage.now_s)

    def _do_overhear(self, _: list[str], __: dict[str, str]) -> None:
        for sender, to, message in self._stage.on_the_way:
            sign = peek(encode(message))
            if sign is not None:
                self._stage[to].overhear(sender, sign, self._stage.now_s)

    def _do_peers(self, names: list[str], _: dict[str, str]) -> None:
        leader = self._stage[names[0]]
        for peer in leader.others:
            heard_s, lag = leader.peer_heard_s(peer), leader.peer_lag(peer)
            heard = "never" if heard_s is None else f"{self._stage.now_s - heard_s:.2f}s"
            wants = " wants-snapshot" if peer in leader.wants_snapshot() else ""
            places = f"match={leader.progress[peer].match_index} next={leader.progress[peer].next_index} lacks={lag}"
            self._out.append(f"{peer}: {places} heard={heard} caught-up={leader.has_caught_up(peer)}{wants}")


def _state(engine: ShardRaft) -> str:
    terms = [engine.term_at(index) for index in range(engine.base_index + 1, engine.last_index + 1)]
    parts = [
        _ROLES[engine.role],
        f"term={engine.term}",
        f"vote={engine.voted_for or '-'}",
        f"leader={engine.leader or '-'}",
        f"base={engine.base_index}" if engine.base_index else "",
        f"log={''.join(str(term) for term in terms)}",
        f"durable={engine.durable_index}" if engine.durable_index != engine.last_index else "",
        f"commit={engine.commit_index}",
        f"applied={engine.applied_index}",
        f"members=v{engine.configuration.version}:{members_text(engine.configuration)}",
        "serves" if engine.serves else "",
    ]
    return " ".join(part for part in parts if part)
