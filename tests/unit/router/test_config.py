"""The router's configuration: defaults, refusals, and no password in sight."""

import pytest

from holdfast.router.config import ConfigError, RouterConfig, load_config


def problems(overrides: dict[str, object]) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as refused:
        load_config(None, overrides, {})
    return refused.value.problems


def test_defaults() -> None:
    config = load_config(None, {}, {})
    assert (config.host, config.port, config.ops_port) == ("127.0.0.1", 7400, 7480)
    assert config.etcd_addresses == ["127.0.0.1:2379"]
    assert config == RouterConfig()


@pytest.mark.parametrize("name", sorted(RouterConfig.model_fields))
def test_every_field_is_documented_and_refuses_nonsense(name: str) -> None:
    assert RouterConfig.model_fields[name].description
    nonsense: list[object] = ["", "   ", True, [], {"a": 1}, 10**30, -1, float("nan")]
    for value in nonsense:
        (problem,) = problems({name: value})
        assert problem.startswith(f"{name}: got ")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"port": 7480}, "ops_port = 7480 (from default) must differ from port = 7480 (from flag --port)"),
        (
            {"calls_max": 10},
            "calls_per_shard_max = 2000 (from default) must not exceed calls_max = 10 (from flag --calls-max)",
        ),
        (
            {"etcd_user": "u"},
            "etcd_user = 'u' (from flag --etcd-user) must come together with etcd_password = '' (from default)",
        ),
    ],
)
def test_contradictions_name_both_fields(overrides: dict[str, object], expected: str) -> None:
    assert problems(overrides) == (expected,)


def test_the_password_is_never_shown() -> None:
    config = load_config(None, {"etcd_user": "u"}, {"HOLDFAST_ETCD_PASSWORD": "hunter2"})
    assert config.etcd_password == "hunter2"
    assert "hunter2" not in str(config.describe())
    assert config.describe().keys() == RouterConfig.model_fields.keys()
    assert "hunter2" not in problems({"etcd_password": "hunter2", "port": 7480})[0]
    assert "hunter2" not in str(problems({"etcd_password": "hunter2" * 1000}))
