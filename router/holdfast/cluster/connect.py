"""How a server is connected to others, as its settings ask for it: to etcd, to brokers, and to those who call it."""

from typing import Any

from holdfast.cluster.etcd.client import EtcdClient, EtcdTls
from holdfast.cluster.settings import ClusterSettings
from holdfast.common.certificates import CertificateError
from holdfast.serving.reloading import Reloaded, keep_current
from holdfast.serving.tls import Listening
from holdfast.transport.tls import ChannelTls, channel_tls


def connect(settings: ClusterSettings) -> EtcdClient:
    """Opens nothing yet. The settings name at least one endpoint."""
    tls = None
    if settings.etcd_authority is not None:
        tls = EtcdTls(settings.etcd_authority, settings.etcd_certificate, settings.etcd_key)
    return EtcdClient(settings.etcd_addresses, tls=tls, user=settings.etcd_user, password=settings.etcd_password)


class Certificates:
    """What a server shows to those who call it, and to the brokers that it calls itself; None where there is no TLS.
    Those for other nodes and for etcd belong to who connects to them."""

    def __init__(self, settings: ClusterSettings) -> None:
        """Reads the files; raises CertificateError."""
        own, brokers = settings.server_tls, settings.broker_tls
        self.listening = None if own is None else Listening(own)
        self.http = self.listening.http if self.listening is not None and settings.ops_tls == "on" else None
        self.to_brokers: Reloaded[ChannelTls] | None = None
        if brokers is not None:
            self.to_brokers = Reloaded(
                "brokers", brokers.paths, lambda: channel_tls(brokers), errors=CertificateError
            )  # fmt: skip

    @property
    def all(self) -> list[Reloaded[Any]]:
        own = None if self.listening is None else self.listening.certificates
        found: list[Reloaded[Any] | None] = [own, self.to_brokers]
        return [one for one in found if one is not None]

    async def keep_current(self) -> None:
        """Until it is ended."""
        await keep_current(self.all)
