"""The rebalancer's configuration: defaults, refusals, and that every field says what it is."""

import pytest

from holdfast.rebalancer.config import ConfigError, RebalancerConfig, load_config


def test_defaults() -> None:
    config = load_config(None, {}, {})
    assert (config.gone_after_seconds, config.settle_seconds, config.ops_port) == (900, 30, 7482)
    assert config == RebalancerConfig()


@pytest.mark.parametrize("name", sorted(RebalancerConfig.model_fields))
def test_every_field_is_documented_and_refuses_nonsense(name: str) -> None:
    assert RebalancerConfig.model_fields[name].description
    nonsense: list[object] = ["", "   ", True, [], {"a": 1}, 10**30, -1, float("nan")]
    for value in nonsense:
        with pytest.raises(ConfigError) as refused:
            load_config(None, {name: value}, {})
        assert refused.value.problems[0].startswith(f"{name}: got ")


def test_a_password_is_never_shown() -> None:
    config = load_config(None, {"etcd_user": "u", "etcd_password": "secret"}, {})
    assert config.describe()["etcd_password"] == "(set)"
    with pytest.raises(ConfigError, match="must come together"):
        load_config(None, {"etcd_user": "u"}, {})
