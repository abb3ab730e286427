"""Configuration: precedence, and refusals that say what to change."""

import json
from pathlib import Path

import pytest

from holdfast.broker.config import BrokerConfig, ConfigError, load_config


def problems(
    overrides: dict[str, object] | None = None, env: dict[str, str] | None = None, path: Path | None = None
) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        load_config(path, overrides or {}, env or {})
    return refused.value.problems


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.toml"


def test_defaults_are_those_of_the_design() -> None:
    config = load_config(None, {}, {})
    assert (config.host, config.port, config.ops_port) == ("127.0.0.1", 7400, 7403)
    assert config.data_dir == Path("holdfast-data")
    assert (config.payload_bytes_max, config.batch_tasks_max, config.batch_bytes_max) == (1 << 20, 1000, 4 << 20)
    assert (config.lease_ms_min, config.lease_ms_max) == (1000, 24 * 3600 * 1000)
    assert config == BrokerConfig()


def test_flags_win_over_environment_over_file_over_defaults(toml: Path) -> None:
    toml.write_text('port = 1\nops_port = 2\nwait_ms_max = 3\nlog_level = "debug"\n')
    env = {"HOLDFAST_OPS_PORT": "20", "HOLDFAST_WAIT_MS_MAX": "30", "HOLDFAST_LOG_LEVEL": "", "PORT": "9"}
    config = load_config(
        toml, {"wait_ms_max": 300, "log_level": None}, env, {"waiters_max": 4000, "port": 7401, "host": "::1"}
    )
    assert (config.port, config.ops_port, config.wait_ms_max, config.waiters_max) == (1, 20, 300, 4000)
    assert (config.log_level, config.host) == ("debug", "::1")


def test_building_it_directly_ignores_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_PORT", "9")
    assert BrokerConfig().port == 7400
    assert load_config(None, {}).port == 9


def test_the_object_is_frozen() -> None:
    config = BrokerConfig()
    with pytest.raises(ValueError, match="frozen"):
        config.port = 1  # type: ignore[misc]


def test_a_problem_names_field_value_range_and_origin(toml: Path) -> None:
    toml.write_text('log_format = "xml"')
    assert problems({"port": 70_000}, {"HOLDFAST_BATCH_TASKS_MAX": "many"}, toml) == (
        f"log_format: got 'xml' (from file {toml}), allowed: auto or json or console",
        "port: got 70000 (from flag --port), allowed: a whole number from 0 to 65535",
        "batch_tasks_max: got 'many' (from environment HOLDFAST_BATCH_TASKS_MAX), "
        "allowed: a whole number from 1 to 1000",
    )


def test_hosts_and_networks_of_webhooks_are_checked() -> None:
    good = {"webhook_hosts": "a.example.org, *.b.test,10.0.0.1", "webhook_networks": "10.0.0.0/8, fc00::/7"}
    assert load_config(None, {}, {f"HOLDFAST_{name.upper()}": text for name, text in good.items()}).webhook_networks
    for bad in ("10.0.0.1/8", "10.0.0.0/99", "10.0.0.0", "10.0.0.0/8;::/0", "everything"):
        [problem] = problems({}, {"HOLDFAST_WEBHOOK_NETWORKS": bad})
        assert problem.startswith(f"webhook_networks: got {bad!r}")
        assert "allowed: networks, e.g. 10.0.0.0/8" in problem
    for bad in ("*", "a.*.test", "http://a.test", "a b"):
        [problem] = problems({}, {"HOLDFAST_WEBHOOK_HOSTS": bad})
        assert "allowed: names of hosts" in problem


def test_an_unknown_key_is_refused_by_name(toml: Path) -> None:
    toml.write_text("prot = 7500\n[storage]\npath = 'x'\n")
    assert problems(path=toml) == (
        f"prot: there is no such setting (from file {toml}); did you mean port?",
        f"storage: there is no such setting (from file {toml})",
    )


def test_other_variables_with_our_prefix_are_left_alone() -> None:
    assert load_config(None, {}, {"HOLDFAST_ADDRESS": "example:7400"}) == BrokerConfig()


@pytest.mark.parametrize("name", sorted(BrokerConfig.model_fields))
def test_nonsense_is_refused_for_every_field(name: str) -> None:
    nonsense: list[object] = ["", "   ", True, [], {"a": 1}, 10**30, -1, float("nan"), float("-inf")]
    if name == "nodes":
        nonsense.remove([])  # a node alone
    for value in nonsense:
        (problem,) = problems({name: value})
        assert problem.startswith(f"{name}: got ")


@pytest.mark.parametrize("name", sorted(BrokerConfig.model_fields))
def test_every_field_has_a_line_of_documentation(name: str) -> None:
    assert BrokerConfig.model_fields[name].description


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (
            {"lease_ms_min": 5000, "lease_ms_max": 4000},
            "lease_ms_min = 5000 (from flag --lease-ms-min) must not exceed lease_ms_max = 4000 "
            "(from flag --lease-ms-max)",
        ),
        (
            {"batch_bytes_max": 2048, "result_bytes_max": 1},
            "payload_bytes_max = 1048576 (from default) must not exceed batch_bytes_max = 2048 "
            "(from flag --batch-bytes-max)",
        ),
        (
            {"max_claims_default": 9},
            "max_attempts_default = 10 (from default) must not exceed max_claims_default = 9 "
            "(from flag --max-claims-default)",
        ),
        ({"port": 7403}, "ops_port = 7403 (from default) must differ from port = 7403 (from flag --port)"),
    ],
)
def test_contradictions_name_both_fields(overrides: dict[str, object], expected: str) -> None:
    assert problems(overrides) == (expected,)


MEMBER = {"node_name": "n1", "etcd_endpoints": "e:1", "advertise_address": "h:1", "advertise_peer_address": "h:2"}
SECRET = "0123456789abcdef0123456789abcdef"
TLS = dict.fromkeys(("peer_certificate", "peer_key", "peer_authority"), "file.pem")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "broker-1.internal"])
def test_where_strangers_can_reach_it_a_node_has_others_prove_who_they_are(host: str) -> None:
    # Whether clients have to is another question.
    member: dict[str, object] = {**MEMBER, "host": host, "insecure": "on"}
    (problem,) = problems(member)
    assert problem.startswith("cluster_secret_file = ")
    for proof in ({"cluster_secret": SECRET}, {"cluster_secret_file": "secret"}, TLS):
        assert load_config(None, {**member, **proof}, {}).proves_peers
    assert not load_config(None, {"host": host, "insecure": "on"}, {}).proves_peers, "a node alone has no peers"
    assert load_config(None, {**member, "peer_host": "127.0.0.1"}, {}).proves_peers is False, "nobody else reaches that"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_on_one_machine_a_node_may_do_without(host: str) -> None:
    assert not load_config(None, {**MEMBER, "host": host}, {}).proves_peers


def test_a_secret_is_never_shown() -> None:
    config = load_config(None, {}, {"HOLDFAST_CLUSTER_SECRET": SECRET})
    assert config.cluster_secret == SECRET
    assert SECRET not in str(config.describe())
    (problem,) = problems({"cluster_secret": SECRET, "cluster_secret_file": "secret"})
    assert SECRET not in problem
    (problem,) = problems({"cluster_secret": "a short one"})
    assert "a short one" not in problem


def test_two_free_ports_are_no_contradiction() -> None:
    assert load_config(None, {"port": 0, "ops_port": 0}, {}).ops_port == 0


def test_finished_tasks_outlive_remembered_outcomes() -> None:
    (problem,) = problems({"finished_retention_ms": 599_999})
    assert problem.startswith("finished_retention_ms: got 599999")
    assert "from 600000 to" in problem


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"port = ", "not valid TOML"), (b"\xff\xfe", "not valid TOML"), (None, "no such file")],
)
def test_a_bad_file_is_refused_by_name(toml: Path, content: bytes | None, expected: str) -> None:
    if content is not None:
        toml.write_bytes(content)
    (problem,) = problems(path=toml)
    assert str(toml) in problem
    assert expected in problem


def test_describe_is_printable() -> None:
    described = BrokerConfig(data_dir=Path("/var/lib/x")).describe()
    assert described["data_dir"] == "/var/lib/x"
    assert described.keys() == BrokerConfig.model_fields.keys()
    assert all(isinstance(value, str | int | float) for value in described.values())


# ------------------------------------------------------------------------------------------------------ list of nodes


def listed(*names: str, **changes: object) -> list[dict[str, object]]:
    """Tables of nodes; `changes` are those of the last one."""
    rows: list[dict[str, object]] = [
        {"name": name, "address": f"h{index}:1", "peer_address": f"h{index}:2"} for index, name in enumerate(names)
    ]
    rows[-1] |= changes
    return rows


def test_a_node_of_a_list_must_be_told_which_one_it_is() -> None:
    """Or every node of one shared file would be the same one."""
    (problem,) = problems({"nodes": listed("n1", "n2")})
    assert problem.startswith("node_name = 'n1' (from default) must be set, in the file or as HOLDFAST_NODE_NAME, ")
    assert load_config(None, {"nodes": listed("n1", "n2")}, {"HOLDFAST_NODE_NAME": "n1"}).node_name == "n1"
    assert load_config(None, {}, {}).node_name == "n1"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"address": "h0:1"}, "must not have h0:1 twice: address of n1 and address of n2"),
        ({"peer_address": "h0:2"}, "must not have h0:2 twice: peer_address of n1 and peer_address of n2"),
        ({"peer_address": "h1:1"}, "must not have h1:1 twice: address of n2 and peer_address of n2"),
    ],
)
def test_an_address_that_stands_in_the_list_twice_is_refused(changes: dict[str, object], expected: str) -> None:
    (problem,) = problems({"nodes": listed("n1", "n2", **changes), "node_name": "n1"})
    assert problem.startswith("nodes = 'n1=h0:1")
    assert problem.endswith(expected)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"adress": "h9:1"},
            "adress of node 2 in the list: there is no such key (from flag --nodes); did you mean address?",
        ),
        (
            {"zone": "a"},
            "zone of node 2 in the list: there is no such key (from flag --nodes); "
            "there are name, address, peer_address",
        ),
        ({"address": "h1"}, "address of node 2 in the list: got 'h1' (from flag --nodes), allowed: host:port"),
    ],
)
def test_a_wrong_key_of_a_node_is_named(changes: dict[str, object], expected: str) -> None:
    assert problems({"nodes": listed("n1", "n2", **changes), "node_name": "n1"}) == (f"nodes: {expected}",)


def test_a_missing_key_of_a_node_is_named() -> None:
    (problem,) = problems({"nodes": [{"name": "n1", "address": "h:1"}], "node_name": "n1"})
    assert problem == "nodes: peer_address of node 1 in the list: is missing (from flag --nodes)"


def test_a_list_in_the_environment_must_be_json() -> None:
    (problem,) = problems(env={"HOLDFAST_NODES": '{ name = "n1" }'})
    assert problem.startswith(
        "nodes: got '{ name = \"n1\" }' (from environment HOLDFAST_NODES), allowed: JSON: a list of "
    )
    env = {"HOLDFAST_NODES": json.dumps(listed("n1", "n2")), "HOLDFAST_NODE_NAME": "n2"}
    assert load_config(None, {}, env).port == 1
