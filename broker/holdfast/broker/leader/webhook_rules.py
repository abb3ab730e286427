"""Where messages to other systems may go. Whoever may set up a queue names a URL: that does not make him somebody at
whose word a server knocks at any address that it can reach."""

import ipaddress
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenError(Exception):
    """Why nothing is sent there, without the address itself."""


class WebhookRules:
    """`hosts`: names that may be called, `*.example.org` for all below one; none: all. `networks`: addresses that may
    be called although they are not public."""

    def __init__(self, hosts: str | None = None, networks: str | None = None) -> None:
        self._hosts = None if hosts is None else [host.strip().lower().rstrip(".") for host in hosts.split(",")]
        self._networks = networks_of(networks or "")

    def check_host(self, host: str) -> None:
        """As the URL has it. Raises ForbiddenError."""
        name = host.lower().rstrip(".")
        if self._hosts is not None and not any(_fits(name, pattern) for pattern in self._hosts):
            raise ForbiddenError("webhook_hosts does not have it")

    def choose(self, found: Sequence[str]) -> str:
        """Of the addresses of a host the first one that may be called. Raises ForbiddenError."""
        for text in found:
            if self._may_call(ipaddress.ip_address(text.partition("%")[0])):
                return text
        raise ForbiddenError("it has no public address, and webhook_networks none that it has")

    def _may_call(self, address: Address) -> bool:
        meant = _meant(address)
        if any(meant.version == network.version and meant in network for network in self._networks):
            return True
        return meant.is_global and not meant.is_multicast


def networks_of(text: str) -> list[Network]:
    """Raises ValueError."""
    return [ipaddress.ip_network(part.strip()) for part in text.split(",") if part.strip()]


def _fits(name: str, pattern: str) -> bool:
    return name.endswith(pattern[1:]) if pattern.startswith("*.") else name == pattern


def _meant(address: Address) -> Address:
    """Of an address that only carries another one, that."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        return address.ipv4_mapped or address.sixtofour or (address.teredo or (None, None))[1] or address
    return address
