"""All faults and operations by name: what each does, whom it can be aimed at, and what it needs."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from chaos.faults import clocks, disks, network, operations, processes
from chaos.faults.arena import Arena
from chaos.plan import Kind, Step
from chaos.system.abilities import DISKS, NAMESPACES, Abilities
from chaos.system.system import Spec

Strike = Callable[[Arena, Step, list[str]], Awaitable[None]]

_BROKER = ("leader", "follower", "source", "destination")
_NETWORK = frozenset({NAMESPACES})
_DISK = frozenset({DISKS})
_TRACE = frozenset({"strace"})
_CLOCK = frozenset({"cc"})


@dataclass(frozen=True)
class Fault:
    """One entry."""

    strike: Strike
    kind: Kind
    needs: frozenset[str] = frozenset()
    brokers_min: int = 1
    replication_min: int = 1  # fewer replicas would lose data by it
    brokers_spare: int = 0  # beside as many as a shard has replicas
    clocks: bool = False


FAULTS: dict[str, Fault] = {
    "kill": Fault(processes.kill, Kind(_BROKER, (0.0, 3.0))),
    "kill-router": Fault(processes.kill, Kind(("router",), (0.0, 2.0))),
    "kill-worker": Fault(processes.kill, Kind(("worker",), (0.0, 2.0))),
    "kill-all": Fault(processes.kill, Kind(("all",), (0.0, 1.0))),
    "pause": Fault(processes.pause, Kind(_BROKER, (0.3, 6.0))),
    "pause-majority": Fault(processes.pause, Kind(("majority",), (0.5, 4.0)), brokers_min=3),
    "pause-router": Fault(processes.pause, Kind(("router",), (0.3, 5.0))),
    "pause-worker": Fault(processes.pause, Kind(("worker",), (0.5, 6.0))),
    "stop": Fault(processes.stop, Kind(_BROKER, (0.0, 1.0))),
    "host-dies": Fault(processes.host_dies, Kind(_BROKER, (6.0, 12.0))),
    "cut-one-way": Fault(network.cut_one_way, Kind(_BROKER, (1.0, 6.0)), _NETWORK, brokers_min=3),
    "cut-two-way": Fault(network.cut_two_way, Kind(_BROKER, (1.0, 6.0)), _NETWORK, brokers_min=3),
    "cut-ring": Fault(network.cut_ring, Kind(("all",), (2.0, 8.0)), _NETWORK, brokers_min=4),
    "cut-majority": Fault(network.cut_majority, Kind(("majority",), (2.0, 8.0)), _NETWORK, brokers_min=3),
    "cut-from-etcd": Fault(network.cut_from_etcd, Kind(_BROKER, (3.0, 10.0)), _NETWORK),
    "unplug": Fault(network.unplug, Kind((*_BROKER, "router", "worker"), (1.0, 6.0)), _NETWORK),
    "loss": Fault(network.loss, Kind(_BROKER, (2.0, 8.0), (5.0, 15.0, 30.0)), _NETWORK | {"nft"}),
    "slow-link": Fault(network.slow_link, Kind(_BROKER, (2.0, 8.0), (64.0, 256.0)), _NETWORK | {"tc"}),
    "disk-full": Fault(disks.full, Kind(_BROKER, (2.0, 6.0)), _DISK),
    "disk-error": Fault(disks.io_error, Kind(_BROKER, (1.0, 2.0)), _TRACE),
    "disk-slow": Fault(disks.slow_sync, Kind(_BROKER, (3.0, 8.0), (300.0, 500.0, 800.0)), _TRACE),
    "disk-stall": Fault(disks.stall, Kind(_BROKER, (1.0, 12.0)), _DISK | {"fsfreeze"}),
    "power-cut": Fault(disks.power_cut, Kind((*_BROKER, "all"), (0.0, 2.0)), _DISK),
    "disk-lost": Fault(disks.lost, Kind(_BROKER, (0.0, 1.5)), brokers_min=3, replication_min=3),
    "bit-flip-log": Fault(disks.flip_log_bit, Kind(_BROKER, (0.0, 0.0)), brokers_min=3, replication_min=3),
    "bit-flip-state": Fault(disks.flip_state_bit, Kind(_BROKER, (0.0, 0.0)), brokers_min=3, replication_min=3),
    "clock-jump": Fault(clocks.jump, Kind(_BROKER, (2.0, 8.0), (-60.0, -2.0, 2.0, 60.0)), _CLOCK, clocks=True),
    "clock-strobe": Fault(clocks.strobe, Kind(_BROKER, (2.0, 6.0), (0.4, 2.0, 60.0)), _CLOCK, clocks=True),
    "etcd-quorum": Fault(processes.kill, Kind(("etcd-majority",), (3.0, 10.0))),
    "etcd-pause": Fault(processes.pause, Kind(("etcd", "etcd-majority"), (2.0, 8.0))),
}
OPERATIONS: dict[str, Fault] = {
    "move": Fault(operations.move, Kind(("all",), (0.0, 0.0)), brokers_spare=1),
    "transfer": Fault(operations.transfer, Kind(("all",), (0.0, 0.0)), brokers_min=3, replication_min=3),
    "drain": Fault(operations.drain, Kind(("any",), (0.5, 2.0)), replication_min=3, brokers_spare=1),
    "add": Fault(operations.add, Kind(("all",), (0.0, 0.0)), brokers_min=3),
    "rolling-restart": Fault(operations.rolling_restart, Kind(("all",), (0.0, 0.5))),
    "backup": Fault(operations.backup, Kind(("all",), (0.0, 0.0))),
    "spread": Fault(operations.spread, Kind(("all",), (0.0, 1.0), (0.0, 2.0, 4.0))),
}
ALL = {**FAULTS, **OPERATIONS}
# Names for several.
GROUPS: dict[str, tuple[str, ...]] = {
    "none": (),
    "kills": ("kill", "kill-router", "kill-worker", "kill-all", "host-dies", "stop"),
    "pauses": ("pause", "pause-majority", "pause-router", "pause-worker"),
    "cuts": ("cut-one-way", "cut-two-way", "cut-ring", "cut-majority", "cut-from-etcd", "unplug"),
    "links": ("loss", "slow-link"),
    "disks": ("disk-full", "disk-error", "disk-slow", "disk-stall"),
    "power": ("power-cut",),
    "damage": ("disk-lost", "bit-flip-log", "bit-flip-state"),
    "clocks": ("clock-jump", "clock-strobe"),
    "etcd": ("etcd-quorum", "etcd-pause", "cut-from-etcd"),
    "mix": tuple(FAULTS),
}


class UnknownFaultError(ValueError):
    """A name that is none; a sentence."""


def names_of(text: str, known: Iterable[str]) -> list[str]:
    """Names and groups of names, with commas between them; each once."""
    found: dict[str, None] = {}
    for name in filter(None, text.split(",")):
        if name not in GROUPS and name not in known:
            raise UnknownFaultError(f"Expected one of {', '.join([*known, *GROUPS])}, but got {name}.")
        found |= dict.fromkeys(GROUPS.get(name, (name,)))
    return list(found)


def possible(names: Iterable[str], spec: Spec, abilities: Abilities) -> tuple[list[str], dict[str, str]]:
    """Those that can be on such a system here; of the others, why not."""
    can: list[str] = []
    cannot: dict[str, str] = {}
    for name in names:
        fault = ALL[name]
        missing = abilities.missing(fault.needs)
        if missing:
            cannot[name] = "needs " + " and ".join(missing)
        elif spec.brokers < fault.brokers_min:
            cannot[name] = f"needs {fault.brokers_min} brokers"
        elif spec.brokers < spec.replication + fault.brokers_spare:
            cannot[name] = f"needs {spec.replication + fault.brokers_spare} brokers, one more than a shard has replicas"
        elif spec.replication < fault.replication_min:
            cannot[name] = f"needs {fault.replication_min} replicas of a shard"
        else:
            can.append(name)
    return can, cannot
