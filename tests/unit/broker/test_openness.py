"""A server that anybody may call does not start where others reach it, unless it is told to, and then it says so."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.broker.config import BrokerConfig, load_config
from holdfast.router.config import RouterConfig
from holdfast.router.config import load_config as load_router
from holdfast.serving import openness
from holdfast.serving.logs import setup_logs
from holdfast.serving.openness import report_openness
from holdfast.serving.settings import ConfigError

ELSEWHERE = ["0.0.0.0", "::", "10.0.0.7", "broker-1.internal"]
HERE = ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost"]
TLS = {"tls_cert": "n1.crt", "tls_key": "n1.key", "tls_ca": "ca.crt"}
CLOSED = TLS | {"tls_client_certs": "required"}


def load(server: str, **given: object) -> BrokerConfig | RouterConfig:
    return (load_router if server == "router" else load_config)(None, given, {})


def problem(server: str, **given: object) -> str:
    with pytest.raises(ConfigError) as refused:
        load(server, **given)
    [one] = refused.value.problems
    return one


@pytest.mark.parametrize("server", ["router", "broker"])
@pytest.mark.parametrize("host", ELSEWHERE)
def test_where_others_reach_it_a_server_knows_who_calls(server: str, host: str) -> None:
    said = problem(server, host=host)
    assert said.startswith("tls_cert = '' (from default) must be set")
    assert "--insecure" in said
    assert problem(server, host=host, **TLS).startswith("tls_client_certs = 'no'")
    assert problem(server, frames_host=host).startswith("tls_cert = ''"), "gRPC is not all there is"
    config = load(server, host=host, **CLOSED)
    assert (config.is_closed, config.is_exposed) == (True, False)
    config = load(server, host=host, insecure="on")
    assert (config.is_closed, config.is_exposed) == (False, True)


@pytest.mark.parametrize("server", ["router", "broker"])
@pytest.mark.parametrize("asks", [{"access_file": "access.json"}, {"access": "required"}])
def test_access_rules_say_who_calls_as_well_as_certificates_do(server: str, asks: dict[str, str]) -> None:
    config = load(server, host="0.0.0.0", **TLS, **asks)
    assert (config.knows_callers, config.is_closed, config.is_exposed) == (True, True, False)
    said = problem(server, host="0.0.0.0", **asks)
    assert said.startswith("tls_cert = '' (from default) must be set"), "tokens are secrets that travel"
    assert not load(server, host="0.0.0.0", router_secret_file="r.secret", insecure="on").knows_callers


@pytest.mark.parametrize("host", HERE)
def test_on_its_own_machine_it_is_open(host: str) -> None:
    config = load("broker", host=host)
    assert (config.is_closed, config.is_exposed) == (False, False)


def test_ports_that_only_show_something_may_be_elsewhere() -> None:
    assert not load("broker", ops_host="0.0.0.0").is_exposed
    assert not load("broker", peer_host="0.0.0.0").is_exposed, "a node alone has no peers"
    assert "cluster_secret_file" in problem(
        "broker", peer_host="0.0.0.0", node_name="n1", etcd_endpoints="e:1", advertise_peer_address="h:2"
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tls_cert": "a"}, "tls_cert = 'a' (from flag --tls-cert) must come together with tls_key"),
        ({"broker_key": "a"}, "broker_key = 'a' (from flag --broker-key) must come together with broker_cert"),
        ({"ops_tls": "on"}, "ops_tls = 'on' (from flag --ops-tls) must come together with tls_cert"),
        ({"tls_client_certs": "required", "tls_cert": "a", "tls_key": "b"}, "must come together with tls_ca"),
        ({"insecure": True}, "allowed: on or off"),
    ],
)
def test_settings_that_say_half_of_it_are_refused(given: dict[str, Any], words: str) -> None:
    assert words in problem("router", **given)


def test_a_broker_with_tls_can_call_the_others() -> None:
    cluster = {"node_name": "n1", "etcd_endpoints": "e:1", "tls_cert": "a", "tls_key": "b"}
    assert "tls_ca" in problem("broker", **cluster)
    tls = load("broker", **cluster, broker_ca="brokers.crt").broker_tls
    assert tls is not None
    assert (tls.authority, tls.certificate) == (Path("brokers.crt"), Path("a"))


def test_a_router_may_show_brokers_another_certificate_than_callers() -> None:
    tls = load("router", **TLS, broker_ca="own.crt", broker_cert="r1.crt", broker_key="r1.key").broker_tls
    assert tls is not None
    assert tls.paths == [Path("own.crt"), Path("r1.crt"), Path("r1.key")]
    tls = load("router", **TLS).broker_tls
    assert tls is not None
    assert tls.paths == [Path("ca.crt"), Path("n1.crt"), Path("n1.key")]
    assert load("router").broker_tls is None


async def said_by(config: BrokerConfig | RouterConfig, times: int) -> list[dict[str, Any]]:
    stream = io.StringIO()
    setup_logs("info", "json", stream)
    reporting = asyncio.create_task(report_openness(config))
    async with asyncio.timeout(10):
        while len(stream.getvalue().splitlines()) < times and not reporting.done():
            await asyncio.sleep(0)
    reporting.cancel()
    await asyncio.wait([reporting])
    return [json.loads(line) for line in stream.getvalue().splitlines()]


async def test_it_says_so_as_often_as_it_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openness, "REPEAT_SECONDS", 0)
    [line] = await said_by(load("broker"), 2)
    assert (line["event"], line["level"]) == ("open_on_this_machine", "info")
    lines = await said_by(load("router", host="0.0.0.0", insecure="on"), 3)
    assert {(line["event"], line["level"], line["host"]) for line in lines} == {
        ("open_to_everybody", "warning", "0.0.0.0")
    }
    assert len(lines) >= 3, "again and again"
    assert await said_by(load("router", host="0.0.0.0", **CLOSED), 1) == []
    assert await said_by(load("broker", access="required"), 1) == [], "whoever is on this machine is asked"
