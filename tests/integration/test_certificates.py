"""Certificates of brokers are replaced while they work: nobody is restarted for it, no call fails. The short form, of
transports alone, is in test_peer_tls.py."""

import os
import shutil
from pathlib import Path
from typing import Any

from tests.integration.certificates import Authority
from tests.integration.map_cluster import MapCluster, until
from tests.integration.map_load import load_on, queues_of_all_shards
from tests.long import long_only

SHARDS = 2
NAMES = "DNS:n1,DNS:n2,DNS:n3"


@long_only
def test_brokers_take_new_certificates_into_use(tmp_path: Path) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    first = old.issue("nodes", subject="nodes", names=NAMES)
    trusted = tmp_path / "trusted.pem"
    shutil.copy(old.certificate, trusted)
    settings: dict[str, Any] = {"peer_certificate": first.certificate, "peer_key": first.key, "peer_authority": trusted}
    with MapCluster(tmp_path / "cluster", size=3, shards=SHARDS, **settings) as cluster:
        cluster.start()

        def wait_reloaded(times: int) -> None:
            for node in cluster.nodes.values():
                until(lambda node=node: node.metric("holdfast_certificates_reloaded") >= times, "the new ones")  # type: ignore[misc]
                assert node.metric("holdfast_certificates_unusable") == 0

        with load_on(cluster, queues_of_all_shards("certified", SHARDS)) as load:
            load.wait_for(5)
            trusted.write_text(old.certificate.read_text() + new.certificate.read_text())
            wait_reloaded(1)
            first.certificate.write_text("half written")
            for node in cluster.nodes.values():
                until(lambda node=node: node.metric("holdfast_certificates_unusable") == 1, "that to be seen")  # type: ignore[misc]
            issued = new.issue("renewed", subject="nodes", names=NAMES)
            os.replace(issued.key, first.key)
            os.replace(issued.certificate, first.certificate)
            wait_reloaded(2)
            trusted.write_text(new.certificate.read_text())
            wait_reloaded(3)
            load.wait_for(5)
            cluster.nodes["n3"].kill()  # it comes back with the new one only, and the others know that
            cluster.nodes["n3"].start()
            cluster.wait_settled()
            load.wait_for(5)
        load.check(cluster)
        assert all("TLS_FAILED" not in node.whole_log_text for node in cluster.nodes.values())
