"""The etcd client that a server's settings ask for."""

from holdfast.cluster.etcd.client import EtcdClient, EtcdTls
from holdfast.cluster.settings import ClusterSettings


def connect(settings: ClusterSettings) -> EtcdClient:
    """Opens nothing yet. The settings name at least one endpoint."""
    tls = None
    if settings.etcd_authority is not None:
        tls = EtcdTls(settings.etcd_authority, settings.etcd_certificate, settings.etcd_key)
    return EtcdClient(settings.etcd_addresses, tls=tls, user=settings.etcd_user, password=settings.etcd_password)
