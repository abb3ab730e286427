"""How a server gets its configuration: one frozen object, validated at start. The only file that knows
pydantic_settings.

Precedence: flags > environment (HOLDFAST_<FIELD>) > TOML file (flat keys) > defaults. A bad value is refused with the
field's name, what was given, what is allowed and where it came from; so is a key that no field has.

A server's own class derives from `Settings`, and `load` builds it.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, Field, ValidationError, field_validator
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

NAME_PATTERN = r"^[A-Za-z0-9._-]{1,64}$"
_HOST_PORT = r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):[0-9]{1,5}"
ADDRESS_PATTERN = rf"^{_HOST_PORT}$"
ADDRESSES_PATTERN = rf"^{_HOST_PORT}(, *{_HOST_PORT}){{0,31}}$"
URL_PATTERN = r"^https?://[!-.0-~][!-~]{0,503}$"
_PLACE = r"(\*\.)?[A-Za-z0-9][A-Za-z0-9_.-]*|\[?[0-9A-Fa-f:.]+\]?"
HOSTS_PATTERN = rf"^({_PLACE})(, *({_PLACE})){{0,99}}$"
_NETWORK = r"[0-9A-Fa-f:.]+/[0-9]{1,3}"
NETWORKS_PATTERN = rf"^{_NETWORK}(, *{_NETWORK}){{0,99}}$"

Port = Annotated[int, Field(ge=0, le=65_535)]
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Address = Annotated[str, Field(pattern=ADDRESS_PATTERN)]

_PATTERN_WORDS = {
    NAME_PATTERN: "1 to 64 letters, digits, dots, dashes or underscores",
    ADDRESS_PATTERN: "host:port",
    ADDRESSES_PATTERN: "host:port, or several with commas between them",
    URL_PATTERN: "a URL of http or https with at most 512 characters",
    HOSTS_PATTERN: "names of hosts, several with commas between them; *.example.org for all below one",
    NETWORKS_PATTERN: "networks, e.g. 10.0.0.0/8, several with commas between them",
}
_GIVEN_CHARS_MAX = 80


class ConfigError(Exception):
    """The configuration was refused. `problems` has one line per bad field."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("The configuration was refused:\n" + "\n".join(f"  {line}" for line in problems))
        self.problems = tuple(problems)


class ContradictionError(ValueError):
    """Fields that are fine alone but not together, as (field, what must hold, other field or nothing), and their
    values."""

    def __init__(self, found: list[tuple[str, str, str]], values: Mapping[str, object]) -> None:
        super().__init__("; ".join(f"{field} {rule} {other}".rstrip() for field, rule, other in found))
        self.found = found
        self.values = values


@dataclass(frozen=True, slots=True)
class Table:
    """A field that is a list of tables: what a row is, and the words for people about it."""

    row: type[BaseModel]
    noun: str  # of one row
    allowed: str
    example: str  # in JSON


class ServerSettings(BaseSettings):
    """Everything a server can be told. Built by `load`; built directly it reads no file and no environment."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, env_prefix=ENV_PREFIX)

    tables: ClassVar[Mapping[str, Table]] = {}  # by field

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what the constructor is given: `load` does the layering, so that it knows each value's origin."""
        return (init_settings,)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_what_pydantic_would_bend(cls, value: object) -> object:
        """No field is a switch, so `true` is a mistake, not the number 1; a blank string is nowhere meant."""
        if isinstance(value, bool) or (isinstance(value, str) and not value.strip()):
            raise ValueError("not a value")
        return value

    @field_validator("log_level", "log_format", mode="before", check_fields=False)
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    def is_equal(self, field: str, other: str) -> bool:
        return bool(getattr(self, field) == getattr(self, other))

    def shared_ports(self, *fields: str) -> list[tuple[str, str, str]]:
        """Contradictions between ports that are the same; 0, any free one, never is."""
        ports = [name for name in fields if getattr(self, name)]
        return [
            (name, "must differ from", other)
            for index, name in enumerate(ports)
            for other in ports[:index]
            if self.is_equal(name, other)
        ]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens there."""
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


SettingsT = TypeVar("SettingsT", bound=ServerSettings)


def load(
    settings: type[SettingsT],
    path: Path | None,
    overrides: Mapping[str, object],
    env: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> tuple[SettingsT, dict[str, str]]:
    """Lay flags over environment over file over defaults and validate the result; with it, where each value that is
    not its field's default came from.

    overrides: flags by field name; None means that the flag was not given.
    env: the process environment unless told otherwise.
    defaults: defaults of the calling command that differ from those of the fields.
    """
    layers = [
        (dict.fromkeys(defaults or {}, "default"), dict(defaults or {})),
        _file_layer(settings, path),
        _environment_layer(settings, os.environ if env is None else env),
        _flag_layer(overrides),
    ]
    origins: dict[str, str] = {}
    values: dict[str, Any] = {}
    for layer_origins, layer_values in layers:
        origins |= layer_origins
        values |= layer_values
    try:
        return settings(**values), origins
    except ValidationError as refused:
        problems = [line for error in refused.errors() for line in _problem_lines(settings, error, origins)]
        raise ConfigError(problems) from None


_Layer = tuple[dict[str, str], dict[str, Any]]


def _file_layer(settings: type[ServerSettings], path: Path | None) -> _Layer:
    if path is None:
        return {}, {}
    # The settings source takes a missing file for an empty one; a file that was named must be there.
    if not path.is_file():
        raise ConfigError([f"config file {path}: there is no such file"])
    try:
        values = TomlConfigSettingsSource(settings, toml_file=path)()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError([f"config file {path}: not valid TOML: {error}"]) from None
    except OSError as error:
        raise ConfigError([f"config file {path}: cannot be read: {error.strerror}"]) from None
    return dict.fromkeys(values, f"file {path}"), values


def _environment_layer(settings: type[ServerSettings], env: Mapping[str, str]) -> _Layer:
    source = EnvSettingsSource(settings, env_ignore_empty=True)
    source.env_vars = {name.lower(): value for name, value in env.items() if value}
    try:
        values = source()
    except SettingsError:
        # Only a list of tables is more than a word or a number, and so has to be JSON.
        raise ConfigError(list(_bad_json(settings, source.env_vars))) from None
    return {name: f"environment {ENV_PREFIX}{name.upper()}" for name in values}, values


def _bad_json(settings: type[ServerSettings], env_vars: Mapping[str, str | None]) -> list[str]:
    given = {name: env_vars.get(f"{ENV_PREFIX}{name}".lower()) for name in settings.tables}
    return [
        f"{name}: got {_shown(text)} (from environment {ENV_PREFIX}{name.upper()}), allowed: JSON: a list of "
        f"{settings.tables[name].allowed}, e.g. {settings.tables[name].example}"
        for name, text in given.items()
        if text is not None
    ]


def _flag_layer(overrides: Mapping[str, object]) -> _Layer:
    values = {name: value for name, value in overrides.items() if value is not None}
    return {name: f"flag --{name.replace('_', '-')}" for name in values}, values


def _problem_lines(settings: type[ServerSettings], error: ErrorDetails, origins: Mapping[str, str]) -> list[str]:
    """One bad field, or all contradictions between good ones, as lines for people."""
    if not error["loc"]:
        contradiction = error["ctx"]["error"]
        assert isinstance(contradiction, ContradictionError)

        def reported(name: str) -> str:
            return f"{name} = {_shown(contradiction.values[name])} (from {origins.get(name, 'default')})"

        found = contradiction.found
        return [f"{reported(field)} {rule} {reported(other) if other else ''}".rstrip() for field, rule, other in found]
    name = str(error["loc"][0])
    origin = origins.get(name, "default")
    if name in settings.tables and len(error["loc"]) == 3:
        return [_row_problem(name, settings.tables[name], error, origin)]
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(name, settings.model_fields, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        return [f"{name}: there is no such setting (from {origin}){hint}"]
    given = "a text that is not shown" if name.endswith(("password", "secret")) else _shown(error["input"])
    return [f"{name}: got {given} (from {origin}), allowed: {_allowed(settings, name)}"]


def _row_problem(name: str, table: Table, error: ErrorDetails, origin: str) -> str:
    """A key of one row of a list; people count from one."""
    _, row, key = error["loc"]
    where = f"{name}: {key} of {table.noun} {int(row) + 1} in the list"
    fields = table.row.model_fields
    if error["type"] == "extra_forbidden":
        close = difflib.get_close_matches(str(key), fields, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(fields)}"
        return f"{where}: there is no such key (from {origin}){hint}"
    if error["type"] == "missing":
        return f"{where}: is missing (from {origin})"
    return f"{where}: got {_shown(error['input'])} (from {origin}), allowed: {_words(fields[str(key)])}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _GIVEN_CHARS_MAX else text[:_GIVEN_CHARS_MAX] + "…"


def _allowed(settings: type[ServerSettings], name: str) -> str:
    table = settings.tables.get(name)
    return _words(settings.model_fields[name]) if table is None else table.allowed


def _details(field: Any) -> list[Any]:
    """What is said of a field beside its type; of one that may be absent some of it is said inside the type."""
    inside = [item for choice in get_args(field.annotation) for item in getattr(choice, "__metadata__", ())]
    return [*field.metadata, *(constraint for item in inside for constraint in getattr(item, "metadata", [item]))]


def _words(field: Any) -> str:
    """What a field takes, in words, from its type and bounds."""
    kind, limits = field.annotation, list(field.metadata)
    choices = get_args(kind)
    if type(None) in choices:  # it need not be set
        kind = next(choice for choice in choices if choice is not type(None))
        choices = ()
    if hasattr(kind, "__metadata__"):  # Annotated, which pydantic unfolds only where nothing is around it
        limits += [limit for item in kind.__metadata__ for limit in getattr(item, "metadata", [])]
        kind = kind.__origin__
    if choices:
        return " or ".join(choices)
    patterns = [limit.pattern for limit in limits if getattr(limit, "pattern", None)]
    if patterns:
        return _PATTERN_WORDS[patterns[0]]
    bounds = {key: getattr(limit, key) for limit in limits for key in ("ge", "le") if hasattr(limit, key)}
    kinds: dict[object, str] = {int: "a whole number", float: "a number", Path: "a path"}
    shortest = max((limit.min_length for limit in limits if getattr(limit, "min_length", None)), default=1)
    words = kinds.get(kind, "a non-empty text" if shortest == 1 else f"a text of at least {shortest} characters")
    return f"{words} from {bounds['ge']} to {bounds['le']}" if bounds else words
