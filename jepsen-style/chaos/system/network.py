"""The network of a system: a bridge, a cable to each host, and ways to break it. All of it is in the namespace of the
harness and in those of the hosts; nothing is visible from outside.

Cuts are silent, as real ones are: packets vanish, nobody is told. One-way cuts are rules in the namespace of the
receiver, so that no packet filter is needed for them.
"""

import subprocess
from collections.abc import Iterable, Sequence

from chaos.system.hosts import Host

_SUBNET = "10.231.7"
_BRIDGE = "hfx0"
_NAMESPACE_PREFIX = "hfx-"
_HOSTS_MAX = 200
_CUT_RULE = 10  # its priority: before that of local addresses, which is moved to _LOCAL_RULE
_LOCAL_RULE = 100
HARNESS = Host("harness", f"{_SUBNET}.1")


class Network:
    """Hosts that can be cut off from each other."""

    def __init__(self) -> None:
        self._hosts: dict[str, Host] = {}
        _run("ip", "link", "set", "lo", "up")
        _run("mkdir", "-p", "/run/netns")
        _run("mount", "-t", "tmpfs", "none", "/run/netns")
        _run("ip", "link", "add", _BRIDGE, "type", "bridge")
        _run("ip", "addr", "add", f"{HARNESS.address}/24", "dev", _BRIDGE)
        _run("ip", "link", "set", _BRIDGE, "up")

    def add(self, name: str) -> Host:
        number = len(self._hosts) + 2
        assert number < _HOSTS_MAX
        host = Host(name, f"{_SUBNET}.{number}", f"{_NAMESPACE_PREFIX}{name}")
        inside, cable = host.namespace, _cable(name)
        _run("ip", "netns", "add", inside)
        _run("ip", "link", "add", cable, "type", "veth", "peer", "name", "e0", "netns", inside)
        _run("ip", "link", "set", cable, "master", _BRIDGE, "up")
        _run("ip", "-n", inside, "addr", "add", f"{host.address}/24", "dev", "e0")
        _run("ip", "-n", inside, "link", "set", "e0", "up")
        _run("ip", "-n", inside, "link", "set", "lo", "up")
        _run("ip", "-n", inside, "rule", "add", "pref", str(_LOCAL_RULE), "lookup", "local")
        _run("ip", "-n", inside, "rule", "del", "pref", "0")
        self._hosts[name] = host
        return host

    # --- faults -----------------------------------------------------------------------------------------------

    def cut(self, sender: str, receiver: str) -> None:
        """What the one sends never reaches the other. The other way is open."""
        _rule("add", self._hosts[receiver], self._hosts[sender])

    def mend(self, sender: str, receiver: str) -> None:
        _rule("del", self._hosts[receiver], self._hosts[sender])

    def unplug(self, name: str) -> None:
        _run("ip", "link", "set", _cable(name), "down")

    def plug_in(self, name: str) -> None:
        _run("ip", "link", "set", _cable(name), "up")

    def lose(self, name: str, percent: int) -> None:
        """So many packets of a hundred that would reach the host are lost."""
        nft = ("nft", "add")
        _inside(self._hosts[name], *nft, "table", "inet", "chaos")
        hook = "{ type filter hook input priority 0; }"
        _inside(self._hosts[name], *nft, "chain", "inet", "chaos", "in", hook)
        rule = ("iifname", "e0", "numgen", "random", "mod", "100", "<", str(percent), "drop")
        _inside(self._hosts[name], *nft, "rule", "inet", "chaos", "in", *rule)

    def lose_nothing(self, name: str) -> None:
        _inside(self._hosts[name], "nft", "delete", "table", "inet", "chaos")

    def slow_down(self, name: str, kbit_per_second: int) -> None:
        """What the host sends leaves at this rate."""
        limit = ("rate", f"{kbit_per_second}kbit", "burst", "1600", "latency", "2s")
        _run("tc", "-n", self._hosts[name].namespace, "qdisc", "add", "dev", "e0", "root", "tbf", *limit)

    def speed_up(self, name: str) -> None:
        _run("tc", "-n", self._hosts[name].namespace, "qdisc", "del", "dev", "e0", "root")


def ring_cuts(names: Sequence[str]) -> list[tuple[str, str]]:
    """Each still sees its two neighbours in the ring and nobody else: every one sees a majority, no two the same."""
    count = len(names)
    cuts = []
    for index, name in enumerate(names):
        seen = {names[index - 1], name, names[(index + 1) % count]}
        cuts += [(other, name) for other in names if other not in seen]
    return cuts


def both_ways(one_side: Iterable[str], other_side: Iterable[str]) -> list[tuple[str, str]]:
    """Every pair across, in both directions."""
    others = list(other_side)
    return [pair for one in one_side for other in others for pair in ((one, other), (other, one))]


def _cable(name: str) -> str:
    return f"v-{name}"


def _rule(verb: str, receiver: Host, sender: Host) -> None:
    where = ("pref", str(_CUT_RULE), "from", sender.address, "blackhole")
    _run("ip", "-n", receiver.namespace, "rule", verb, *where)


def _inside(host: Host, *command: str) -> None:
    _run(*host.command(*command))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"Expected `{' '.join(command)}` to succeed, but: {done.stderr.strip()}")
