"""The node's configuration: one frozen object, validated at start.

Precedence: flags > environment (HOLDFAST_<FIELD>) > TOML file (flat keys) > defaults. A bad value is refused with the
field's name, what was given, what is allowed and where it came from; so is a key that no field has.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

ENV_PREFIX = "HOLDFAST_"

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_TIB = 1024 * _GIB
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_YEAR_MS = 366 * _DAY_MS

BATCH_BYTES_LIMIT = 256 * _MIB  # no call may ever carry more, whatever is set

_Port = Annotated[int, Field(ge=0, le=65_535)]
_GIVEN_CHARS_MAX = 80


class ConfigError(Exception):
    """The configuration was refused. `problems` has one line per bad field."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("The configuration was refused:\n" + "\n".join(f"  {line}" for line in problems))
        self.problems = tuple(problems)


class _ContradictionError(ValueError):
    """Fields that are fine alone but not together, as (field, what must hold, other field or nothing), and their
    values."""

    def __init__(self, found: list[tuple[str, str, str]], values: Mapping[str, object]) -> None:
        super().__init__("; ".join(f"{field} {rule} {other}".rstrip() for field, rule, other in found))
        self.found = found
        self.values = values


# The first field of each pair must not exceed the second.
_ORDERED = (
    ("lease_ms_min", "lease_ms_max"),
    ("retry_base_ms", "retry_cap_ms"),
    ("retry_cap_ms", "delay_ms_max"),  # a back-off is a delay
    ("payload_bytes_max", "batch_bytes_max"),  # or the largest task could never be sent
    ("result_bytes_max", "batch_bytes_max"),
    ("batch_bytes_max", "proposals_bytes_max"),  # or the largest batch could never be taken
    ("batch_bytes_max", "segment_bytes"),  # or the largest batch could never be logged
    ("batch_tasks_max", "watched_tasks_max"),  # or the largest wait could never be taken
    ("max_attempts_default", "max_claims_default"),  # every attempt needs a claim
)


_Address = Annotated[str, Field(pattern=r"^(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}$")]
_Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]


class ClusterNode(BaseModel):
    """One node of a static cluster, as all others know it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: _Name
    address: _Address  # gRPC, for clients
    peer_address: _Address  # for the other nodes


class BrokerConfig(BaseSettings):
    """Everything a node can be told. Built by `load_config`; built directly it reads no file and no environment."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, env_prefix=ENV_PREFIX)

    # Where the node lives
    data_dir: Path = Field(Path("holdfast-data"), description="directory of the log and the state; created if missing")
    host: str = Field("127.0.0.1", min_length=1, max_length=255, description="address to listen on")
    port: _Port = Field(7400, description="gRPC port; 0 takes a free one")
    ops_port: _Port = Field(7403, description="HTTP port of /metrics, /livez and /readyz; 0 takes a free one")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line logged")
    log_format: Literal["auto", "json", "console"] = Field("auto", description="auto is console on a terminal")
    shutdown_grace_seconds: float = Field(10.0, ge=0, le=600, description="how long a stop waits for calls under way")

    # The cluster; without a list of nodes this one is alone
    node_name: str = Field("n1", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="name of this node; never changes")
    cluster_name: str = Field(
        "holdfast", pattern=r"^[A-Za-z0-9._-]{1,64}$", description="nodes of another cluster are refused"
    )
    shards: int = Field(1, ge=1, le=1024, description="number of shards; fixed when the cluster is founded")
    nodes: tuple[ClusterNode, ...] = Field(
        (), max_length=9, description="all nodes of the cluster, the same list on each: name, address, peer_address"
    )
    peer_port: _Port = Field(7402, description="port for the other nodes; 0 takes a free one")
    peer_certificate: Path | None = Field(None, description="PEM file: TLS between nodes; needs the other two")
    peer_key: Path | None = Field(None, description="PEM file with the key of peer_certificate")
    peer_authority: Path | None = Field(None, description="PEM file with who signs the nodes' certificates")
    heartbeat_ms: int = Field(150, ge=10, le=10_000, description="how often a leader is heard of")
    election_ms: int = Field(
        500, ge=50, le=60_000, description="silence of a leader before an election, and up to twice"
    )
    snapshot_bytes_per_second: int = Field(
        32 * _MIB, ge=64 * _KIB, le=_TIB, description="most bytes of a snapshot sent to another node in a second"
    )

    # Storage
    segment_bytes: int = Field(64 * _MIB, ge=_MIB, le=_GIB, description="size of one log file")
    state_flush_log_bytes: int = Field(64 * _MIB, ge=64 * _KIB, le=_TIB, description="log bytes that force a flush")
    log_keep_bytes: int = Field(
        64 * _MIB, ge=0, le=_TIB, description="log kept for replicas that lag, so that they need no snapshot"
    )
    state_flush_age_seconds: float = Field(
        60.0, ge=0.1, le=86_400, description="age of unflushed state that forces one"
    )
    state_write_buffer_bytes: int = Field(32 * _MIB, ge=_MIB, le=16 * _GIB, description="memory for unflushed state")
    state_block_cache_bytes: int = Field(64 * _MIB, ge=_MIB, le=_TIB, description="memory for state read from disk")
    free_bytes_min: int = Field(512 * _MIB, ge=0, le=_TIB, description="less free disk refuses writes; 0 never does")

    # What one call may carry
    payload_bytes_max: int = Field(_MIB, ge=1, le=64 * _MIB, description="largest payload of a task")
    result_bytes_max: int = Field(_MIB, ge=1, le=64 * _MIB, description="largest result of a task")
    batch_tasks_max: int = Field(1000, ge=1, le=1000, description="most tasks in one call")
    batch_bytes_max: int = Field(4 * _MIB, ge=_KIB, le=BATCH_BYTES_LIMIT, description="most bytes in one call")
    lease_ms_min: int = Field(1000, ge=1, le=_DAY_MS, description="shortest lease")
    lease_ms_max: int = Field(_DAY_MS, ge=1, le=_YEAR_MS, description="longest lease")
    delay_ms_max: int = Field(_YEAR_MS, ge=1, le=10 * _YEAR_MS, description="furthest a task may be put off")
    wait_ms_max: int = Field(60_000, ge=0, le=_HOUR_MS, description="longest a call may wait")

    # What may wait inside the node
    claims_per_worker_max: int = Field(1000, ge=1, le=1_000_000, description="most claims one worker holds at once")
    ready_window_tasks: int = Field(4096, ge=16, le=1_000_000, description="ready tasks of a queue kept in memory")
    proposals_max: int = Field(10_000, ge=1, le=1_000_000, description="most writes waiting for the log")
    proposals_bytes_max: int = Field(64 * _MIB, ge=_KIB, le=16 * _GIB, description="most bytes of such writes")
    waiters_max: int = Field(10_000, ge=1, le=1_000_000, description="most Reserve, and most WaitTasks calls waiting")
    watched_tasks_max: int = Field(100_000, ge=1, le=10_000_000, description="most tasks that WaitTasks calls wait for")
    oldest_share_percent: int = Field(10, ge=0, le=100, description="share of claims that take the oldest task first")

    # How long things are kept, and when they are tried again
    dedup_window_ms: int = Field(_DAY_MS, ge=1000, le=_YEAR_MS, description="how long a request_id is remembered")
    # At least as long as outcomes of acks are remembered: a retried ack must not meet a forgotten task.
    finished_retention_ms: int = Field(
        10 * _MINUTE_MS, ge=10 * _MINUTE_MS, le=10 * _YEAR_MS, description="how long a finished task can be looked up"
    )
    result_ttl_default_ms: int = Field(_DAY_MS, ge=0, le=10 * _YEAR_MS, description="how long a result is kept")
    dead_retention_ms: int = Field(14 * _DAY_MS, ge=1, le=10 * _YEAR_MS, description="how long a dead task is kept")
    retry_base_ms: int = Field(1000, ge=0, le=_YEAR_MS, description="delay before the second attempt")
    retry_factor: float = Field(2.0, ge=1, le=100, description="growth of the delay from one attempt to the next")
    retry_cap_ms: int = Field(_HOUR_MS, ge=0, le=_YEAR_MS, description="longest delay between attempts")
    retry_jitter: float = Field(0.2, ge=0, le=1, description="random part of a delay, as a fraction of it")
    max_attempts_default: int = Field(10, ge=1, le=1_000_000, description="failures before a task is dead")
    max_claims_default: int = Field(20, ge=1, le=1_000_000, description="claims before a task is dead")
    sweep_batch_tasks: int = Field(200, ge=1, le=1000, description="most tasks one expiry, promotion or purge moves")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the constructor is given: `load_config` does the layering, so that it knows each value's origin."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_what_pydantic_would_bend(cls, value: object) -> object:
        """No field is a switch, so `true` is a mistake, not the number 1; a blank string is nowhere meant."""
        if isinstance(value, bool) or (isinstance(value, str) and not value.strip()):
            raise ValueError("not a value")
        return value

    @field_validator("log_level", "log_format", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    @field_validator("data_dir")
    @classmethod
    def _expand_home(cls, value: Path) -> Path:
        return value.expanduser()

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "BrokerConfig":
        found = [(low, "must not exceed", high) for low, high in _ORDERED if getattr(self, low) > getattr(self, high)]
        ports = [name for name in ("port", "peer_port", "ops_port") if getattr(self, name)]
        for at, name in enumerate(ports):
            found += [(name, "must differ from", other) for other in ports[:at] if self._equal(name, other)]
        if 3 * self.heartbeat_ms > self.election_ms:
            found.append(("election_ms", "must be at least three times", "heartbeat_ms"))
        found += self._cluster_contradictions()
        if found:
            raise _ContradictionError(found, self.describe())
        return self

    def _equal(self, field: str, other: str) -> bool:
        return bool(getattr(self, field) == getattr(self, other))

    def _cluster_contradictions(self) -> list[tuple[str, str, str]]:
        found: list[tuple[str, str, str]] = []
        names = [node.name for node in self.nodes]
        if names and "node_name" not in self.model_fields_set:
            # A default would make every node of one shared file the same one.
            rule = "must be set, in the file or as HOLDFAST_NODE_NAME, to the name of this node in"
            found.append(("node_name", rule, "nodes"))
        elif names and self.node_name not in names:
            found.append(("node_name", "must be one of the names in", "nodes"))
        if len(set(names)) < len(names):
            found.append(("nodes", "must have different names, and one is that of this node:", "node_name"))
        found += [("nodes", rule, "") for rule in _shared_addresses(self.nodes)]
        tls = ("peer_certificate", "peer_key", "peer_authority")
        given = [name for name in tls if getattr(self, name) is not None]
        if given and len(given) < len(tls):
            missing = next(name for name in tls if name not in given)
            found.append((given[0], "must come together with", missing))
        return found

    def describe(self) -> dict[str, str | int | float]:
        """Every setting as a printable value. No field holds a secret; one that does must be left out here."""
        values = {name: "" if value is None else value for name, value in self.model_dump(mode="json").items()}
        return values | {"nodes": ", ".join(f"{node.name}={node.address}" for node in self.nodes)}


def _shared_addresses(nodes: Sequence[ClusterNode]) -> list[str]:
    """What is wrong with addresses that stand in the list twice: two servers cannot listen at one."""
    users: dict[str, list[str]] = {}
    for node in nodes:
        users.setdefault(node.address, []).append(f"address of {node.name}")
        users.setdefault(node.peer_address, []).append(f"peer_address of {node.name}")
    return [f"must not have {at} twice: {' and '.join(uses)}" for at, uses in users.items() if len(uses) > 1]


def load_config(
    path: Path | None,
    overrides: Mapping[str, object],
    env: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> BrokerConfig:
    """Lay flags over environment over file over defaults and validate the result.

    overrides: flags by field name; None means that the flag was not given.
    env: the process environment unless told otherwise.
    defaults: defaults of the calling command that differ from those of BrokerConfig.
    """
    layers = [
        (dict.fromkeys(defaults or {}, "default"), dict(defaults or {})),
        _file_layer(path),
        _environment_layer(os.environ if env is None else env),
        _flag_layer(overrides),
    ]
    origins: dict[str, str] = {}
    values: dict[str, Any] = {}
    for layer_origins, layer_values in layers:
        origins |= layer_origins
        values |= layer_values
    try:
        config = BrokerConfig(**values)
        return config.model_copy(update=_own_ports(config, origins))
    except ValidationError as refused:
        problems = [line for error in refused.errors() for line in _problem_lines(error, origins)]
        raise ConfigError(problems) from None


def _own_ports(config: BrokerConfig, origins: Mapping[str, str]) -> dict[str, int]:
    """A node listens where the others look for it, unless it is told another port."""
    ports: dict[str, int] = {}
    for node in config.nodes:
        if node.name == config.node_name:
            for field, address in (("port", node.address), ("peer_port", node.peer_address)):
                if origins.get(field, "default") == "default":
                    ports[field] = int(address.rpartition(":")[2])
    return ports


_Layer = tuple[dict[str, str], dict[str, Any]]


def _file_layer(path: Path | None) -> _Layer:
    if path is None:
        return {}, {}
    # The settings source takes a missing file for an empty one; a file that was named must be there.
    if not path.is_file():
        raise ConfigError([f"config file {path}: there is no such file"])
    try:
        values = TomlConfigSettingsSource(BrokerConfig, toml_file=path)()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"config file {path}: not valid TOML: {error}"]) from None
    except OSError as error:
        raise ConfigError([f"config file {path}: cannot be read: {error.strerror}"]) from None
    return dict.fromkeys(values, f"file {path}"), values


def _environment_layer(env: Mapping[str, str]) -> _Layer:
    source = EnvSettingsSource(BrokerConfig, env_ignore_empty=True)
    source.env_vars = {name.lower(): value for name, value in env.items() if value}
    try:
        values = source()
    except SettingsError:
        # Of all fields only the list of nodes is more than a word or a number, and so has to be JSON.
        given = source.env_vars[f"{ENV_PREFIX}nodes".lower()]
        allowed = f'JSON: a list of {_allowed("nodes")}, e.g. [{{"name": "n1", "address": "h1:7401", …}}, …]'
        line = f"nodes: got {_shown(given)} (from environment {ENV_PREFIX}NODES), allowed: {allowed}"
        raise ConfigError([line]) from None
    return {name: f"environment {ENV_PREFIX}{name.upper()}" for name in values}, values


def _flag_layer(overrides: Mapping[str, object]) -> _Layer:
    values = {name: value for name, value in overrides.items() if value is not None}
    return {name: f"flag --{name.replace('_', '-')}" for name in values}, values


def _problem_lines(error: ErrorDetails, origins: Mapping[str, str]) -> list[str]:
    """One bad field, or all contradictions between good ones, as lines for people."""
    if not error["loc"]:
        contradiction = error["ctx"]["error"]
        assert isinstance(contradiction, _ContradictionError)

        def told(name: str) -> str:
            return f"{name} = {_shown(contradiction.values[name])} (from {origins.get(name, 'default')})"

        found = contradiction.found
        return [f"{told(field)} {rule} {told(other) if other else ''}".rstrip() for field, rule, other in found]
    name = str(error["loc"][0])
    origin = origins.get(name, "default")
    if name == "nodes" and len(error["loc"]) == 3:
        return [_node_problem(error, origin)]
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, BrokerConfig.model_fields, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return [f"{name}: there is no such setting (from {origin}){hint}"]
    return [f"{name}: got {_shown(error['input'])} (from {origin}), allowed: {_allowed(name)}"]


def _node_problem(error: ErrorDetails, origin: str) -> str:
    """A key of one node in the list; people count from one."""
    _, at, key = error["loc"]
    where = f"nodes: {key} of node {int(at) + 1} in the list"
    fields = ClusterNode.model_fields
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(key), fields, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(fields)}"
        return f"{where}: there is no such key (from {origin}){hint}"
    if error["type"] == "missing":
        return f"{where}: is missing (from {origin})"
    allowed = "1 to 64 letters, digits, dots, dashes or underscores" if key == "name" else "host:port"
    return f"{where}: got {_shown(error['input'])} (from {origin}), allowed: {allowed}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _GIVEN_CHARS_MAX else text[:_GIVEN_CHARS_MAX] + "…"


def _allowed(name: str) -> str:
    """What a field takes, in words, from its type and bounds."""
    field = BrokerConfig.model_fields[name]
    if name == "nodes":
        return "at most 9 tables with name, address (host:port) and peer_address (host:port)"
    choices = get_args(field.annotation)
    if type(None) in choices:
        return "a path"
    if choices:
        return " or ".join(choices)
    patterns = [item.pattern for item in field.metadata if getattr(item, "pattern", None)]
    if patterns:
        return "1 to 64 letters, digits, dots, dashes or underscores"
    bounds = {key: getattr(item, key) for item in field.metadata for key in ("ge", "le") if hasattr(item, key)}
    kinds: dict[object, str] = {int: "a whole number", float: "a number", Path: "a path", str: "a non-empty text"}
    kind = kinds[field.annotation]
    return f"{kind} from {bounds['ge']} to {bounds['le']}" if bounds else kind
