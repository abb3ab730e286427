"""`holdfast queue set` and `queue show` of a cluster with a map: what is asked, printed and returned."""

from dataclasses import fields
from typing import Any

import pytest

from holdfast.cli import policies
from holdfast.client import QueuePolicy
from holdfast.proto.v1 import cluster_pb2 as pb
from tests.unit.cli.cli_runner import Cli
from tests.unit.client.scripted_server import ScriptedServer


def settings(**policy: Any) -> pb.QueueSettings:
    route = pb.QueueRoute(
        queue="mail", home=3, generation=2, draining=[4],
        sets=[pb.QueueSet(generation=1, shards=[3, 4]), pb.QueueSet(generation=2, shards=[5, 6])],
    )  # fmt: skip
    return pb.QueueSettings(route=route, policy=pb.QueuePolicy(**policy), version=5)


def test_queue_show(server: ScriptedServer, cli: Cli) -> None:
    answer = pb.ListQueueSettingsResponse(queues=[settings(max_attempts=5, retry_base_ms=1_500, result_ttl_ms=0)])
    server.on("ListQueueSettings", answer)
    assert cli.run("queue", "show", "mail") == 0
    rows = {line[:19].strip(): line[19:].strip() for line in cli.out.splitlines()}
    assert rows["new tasks go to"] == "shards 5, 6"
    assert rows["draining"].startswith("shard 4: older tasks")
    assert rows["max attempts"] == "5"
    assert rows["retry base"] == "1s"
    assert rows["result ttl"] == "0"
    assert rows["dead retention"] == "as the brokers' configuration says"
    assert cli.json("queue", "show", "mail") == {
        "queue": "mail", "home": 3, "generation": 2, "newest": [5, 6], "shards": [3, 4, 5, 6], "draining": [4],
        "policy": {"max_attempts": 5, "retry_base_ms": 1_500, "result_ttl_ms": 0}, "version": 5,
        "cluster": None,
    }  # fmt: skip


def test_queue_show_has_limits_and_tenants(server: ScriptedServer, cli: Cli) -> None:
    tenants = [pb.TenantPolicy(tenant="acme", weight=3, rate_per_second=1.5), pb.TenantPolicy(tenant="b", weight=2)]
    answer = settings(
        paused=True, retry_shape="linear", non_retryable=["A", "B"], oldest_share_percent=25, rate_per_second=10,
        key_concurrency_max=7, tenants=tenants,
    )  # fmt: skip
    server.on("ListQueueSettings", pb.ListQueueSettingsResponse(queues=[answer]))
    assert cli.run("queue", "show", "mail") == 0
    rows = {line[:19].strip(): line[19:].strip() for line in cli.out.splitlines()}
    assert rows["paused"] == "nothing is handed out until `holdfast queue resume mail`"
    assert (rows["retry shape"], rows["non-retryable"], rows["oldest share"]) == ("linear", "A, B", "25 %")
    assert (rows["rate"], rows["burst"], rows["key concurrency"]) == ("10/s", "one second's worth", "7")
    assert (rows["concurrency"], rows["tenants"], rows[""]) == ("no limit", "acme:weight=3,rate=90/m", "b:weight=2")
    assert "key burst" not in rows, "there is no rate that it could go with"
    assert cli.json("queue", "show", "mail")["policy"] == {
        "paused": True, "retry_shape": "linear", "non_retryable": ["A", "B"], "oldest_share_percent": 25,
        "rate_per_second": 10, "key_concurrency_max": 7,
        "tenants": [{"tenant": "acme", "weight": 3, "rate_per_second": 1.5}, {"tenant": "b", "weight": 2}],
    }  # fmt: skip


def test_every_setting_of_a_queue_has_an_option() -> None:
    assert set(policies.FIELDS) == {field.name for field in fields(QueuePolicy)}
    assert max(len(setting.label) for setting in policies.SETTINGS) <= 18


@pytest.mark.parametrize(
    ("arguments", "request_"),
    [
        (["--spread", "4"], pb.SetQueueRequest(spread=4)),
        (["--pin", "5, 3,5"], pb.SetQueueRequest(pin=pb.ShardList(shards=[3, 5]))),
        (["--home"], pb.SetQueueRequest(home=True)),
        (["--retry-jitter", "0"], pb.SetQueueRequest(policy=pb.QueuePolicy(retry_jitter=0))),
        (["--reset", "retry-base", "--reset", "max_claims"], pb.SetQueueRequest(clear=["retry_base_ms", "max_claims"])),
        (
            ["--max-attempts=5", "--max-claims=9", "--retry-base=500ms", "--retry-factor=1.5", "--retry-cap=1h"],
            pb.SetQueueRequest(
                policy=pb.QueuePolicy(
                    max_attempts=5, max_claims=9, retry_base_ms=500, retry_factor=1.5, retry_cap_ms=3_600_000
                )
            ),
        ),
        (
            ["--dedup-window=1d", "--result-ttl=0", "--finished-retention=1h", "--dead-retention=2d"],
            pb.SetQueueRequest(
                policy=pb.QueuePolicy(
                    dedup_window_ms=86_400_000, result_ttl_ms=0, finished_retention_ms=3_600_000,
                    dead_retention_ms=172_800_000,
                )
            ),
        ),
        (
            ["--retry-shape=fixed", "--non-retryable=A", "--non-retryable=B", "--oldest-share=0", "--task-timeout=1m"],
            pb.SetQueueRequest(
                policy=pb.QueuePolicy(
                    retry_shape="fixed", non_retryable=["A", "B"], oldest_share_percent=0, timeout_ms=60_000
                )
            ),
        ),
        (
            ["--concurrency=5", "--tenant-concurrency=4", "--key-concurrency=3", "--rate=90/m", "--burst=7",
             "--tenant-rate=2/s", "--tenant-burst=8", "--key-rate=1/s", "--key-burst=9"],
            pb.SetQueueRequest(
                policy=pb.QueuePolicy(
                    concurrency_max=5, tenant_concurrency_max=4, key_concurrency_max=3, rate_per_second=1.5,
                    rate_burst=7, tenant_rate_per_second=2, tenant_rate_burst=8, key_rate_per_second=1,
                    key_rate_burst=9,
                )
            ),
        ),
        (
            ["--ttl=1h", "--dead-alert=100", "--dead-alert-url=https://example.org/x", "--reset=tenants",
             "--tenant=a:b:weight=3,concurrency=5,rate=10/s,burst=20", "--tenant=c:weight=1", "--reset=tenant:d"],
            pb.SetQueueRequest(
                policy=pb.QueuePolicy(
                    ttl_ms=3_600_000, dead_alert_at=100, dead_alert_url="https://example.org/x",
                    tenants=[
                        pb.TenantPolicy(tenant="a:b", weight=3, concurrency_max=5, rate_per_second=10, rate_burst=20),
                        pb.TenantPolicy(tenant="c", weight=1),
                    ],
                ),
                clear=["tenants", "tenants.d"],
            ),
        ),
        (
            ["--tenant=acme:concurrency=5", "--reset=tenant-weight:acme", "--reset=--tenant-rate:a:b",
             "--reset=tenant:acme", "--reset=tenant-concurrency:c", "--reset=tenant-burst:c", "--reset=tenant-rate"],
            pb.SetQueueRequest(
                policy=pb.QueuePolicy(tenants=[pb.TenantPolicy(tenant="acme", concurrency_max=5)]),
                clear=[
                    "tenant_weight.acme", "tenant_rate_per_second.a:b", "tenants.acme", "tenant_concurrency_max.c",
                    "tenant_rate_burst.c", "tenant_rate_per_second",
                ],
            ),
        ),
        (
            ["--reset=task-timeout", "--reset=rate", "--reset=paused"],
            pb.SetQueueRequest(clear=["timeout_ms", "rate_per_second", "paused"]),
        ),
    ],
)  # fmt: skip
def test_queue_set_sends_what_is_given_and_nothing_else(
    server: ScriptedServer, cli: Cli, arguments: list[str], request_: pb.SetQueueRequest
) -> None:
    server.on("SetQueue", pb.SetQueueResponse(settings=settings()))
    assert cli.run("queue", "set", "mail", *arguments) == 0
    request_.queue = "mail"
    [sent] = server.requests["SetQueue"]
    if not request_.HasField("policy"):
        assert sent.policy == pb.QueuePolicy()
        sent.ClearField("policy")
    assert sent == request_
    assert "shards 5, 6" in cli.out
