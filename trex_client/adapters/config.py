"""Which adapter, and with which settings: from a TOML file and the environment, never from a row
or argv.

    kind = "http"                       # or "postgres", "none", or the name of an entry point
    url = "https://ledger.example/postings"
    bearer = { env = "LEDGER_TOKEN" }   # credentials: { env = NAME } or { file = PATH }

`TREX_ADAPTER_CONFIG` names the file when the caller names none. An adapter of one's own is a
callable under the entry point group `trex.adapters`; it gets the instance key and the table of
the file, and returns an `Adapter`.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trex_client.adapters.base import Adapter, Secret, require_instance_key
from trex_client.errors import InvalidArgument
from trex_client.model import EFFECT_POLICIES, EffectPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "trex.adapters"
_T = TypeVar("_T")


class ConfigError(InvalidArgument):
    """A setting is missing, of another type or out of range; `detail` is the name of the setting,
    never its value.
    """

    text = "adapter configuration"


@dataclass(frozen=True, slots=True)
class Settings:
    """One TOML table, read with checks. Every reader takes the name of a setting; unknown names
    are refused at the end
    by `done`, so that a mistyped setting can't silently be ignored."""

    table: Mapping[str, Any]
    environ: Mapping[str, str]
    seen: set[str]
    prefix: str = ""

    @classmethod
    def of(cls, table: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
        """Wrap a table; `environ` is `os.environ` unless given."""
        return cls(table, os.environ if environ is None else environ, set())

    def _typed(self, name: str, kind: type[_T] | tuple[type[_T], ...]) -> _T | None:
        self.seen.add(name)
        value = self.table.get(name)
        if value is None:
            return None
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise ConfigError(self.prefix + name)
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A non-empty string; without a default it is required."""
        value = self._typed(name, str)
        if value is None:
            value = default
        if not value or not value.isprintable():
            raise ConfigError(self.prefix + name)
        return value

    def optional_text(self, name: str) -> str | None:
        """A non-empty string or None."""
        return self.text(name) if self.table.get(name) is not None else self._typed(name, str)

    def seconds(
        self, name: str, default: float, *, least: float = 0.0, most: float = 3600.0
    ) -> float:
        """A number of seconds between `least` and `most`."""
        value = self._typed(name, (int, float))
        number = default if value is None else float(value)
        if not least <= number <= most:
            raise ConfigError(self.prefix + name)
        return number

    def integer(self, name: str, default: int, *, least: int, most: int) -> int:
        """A whole number between `least` and `most`."""
        value = self._typed(name, int)
        number = default if value is None else value
        if not least <= number <= most:
            raise ConfigError(self.prefix + name)
        return number

    def flag(self, name: str, *, default: bool) -> bool:
        """true or false."""
        value = self._typed(name, bool)
        return default if value is None else value

    def texts(self, name: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """A list of non-empty strings."""
        value = self._typed(name, list)
        if value is None:
            return default
        if not all(isinstance(item, str) and item for item in value):
            raise ConfigError(self.prefix + name)
        return tuple(value)

    def integers(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A list of whole numbers."""
        value = self._typed(name, list)
        if value is None:
            return default
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            raise ConfigError(self.prefix + name)
        return tuple(value)

    def choice(self, name: str, default: str, choices: tuple[str, ...]) -> str:
        """One of some words."""
        value = self.text(name, default)
        if value not in choices:
            raise ConfigError(self.prefix + name)
        return value

    def policy(self, name: str, default: EffectPolicy) -> EffectPolicy:
        """An effect policy."""
        value = self.text(name, default)
        for known in EFFECT_POLICIES:
            if value == known:
                return known
        raise ConfigError(self.prefix + name)

    def duration(self, name: str, default: float) -> timedelta:
        """Seconds up to a day, as a timedelta."""
        return timedelta(seconds=self.seconds(name, default, most=86400.0))

    def section(self, name: str) -> Settings:
        """A table inside this one; empty when it is missing."""
        value = self._typed(name, dict)
        return Settings(value or {}, self.environ, set(), f"{self.prefix}{name}.")

    def secret(self, name: str) -> Secret | None:
        """A credential: `{ env = NAME }` or `{ file = PATH }`. A value in the file itself is
        refused.
        """
        value = self._typed(name, dict)
        return None if value is None else _read_secret(value, self.environ, self.prefix + name)

    def secrets(self, name: str) -> dict[str, Secret]:
        """A table of credentials."""
        value = self._typed(name, dict) or {}
        return {
            key: _read_secret(item, self.environ, f"{self.prefix}{name}")
            for key, item in value.items()
        }

    def done(self) -> None:
        """Refuse settings that nobody asked for."""
        for name in self.table:
            if name not in self.seen:
                raise ConfigError(
                    f"{self.prefix}{name} is not a setting" if name.isidentifier() else ""
                )


def _read_secret(where: object, environ: Mapping[str, str], name: str) -> Secret:
    if not isinstance(where, dict) or set(where) not in ({"env"}, {"file"}):
        raise ConfigError(name)
    try:
        if "env" in where:
            value = environ[str(where["env"])]
        else:
            value = Path(str(where["file"])).read_text(encoding="utf-8").strip()
    except (KeyError, OSError, ValueError):
        raise ConfigError(f"{name} can't be read") from None
    if not value or not value.isprintable():
        raise ConfigError(name)
    return Secret(value)


def read_config(
    path: str | Path | None = None, *, environ: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Read the adapter's TOML file: `path`, else the file that `TREX_ADAPTER_CONFIG` names, else
    `kind = "none"`.

    Raises:
        ConfigError: the file can't be read or isn't TOML; its text isn't shown.
    """
    env = os.environ if environ is None else environ
    chosen = path or env.get("TREX_ADAPTER_CONFIG")
    if not chosen:
        return {"kind": "none"}
    try:
        return tomllib.loads(Path(chosen).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError("the file can't be read or isn't TOML") from None


def build_adapter(
    instance_key: str,
    table: Mapping[str, Any] | None = None,
    *,
    path: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Adapter:
    """Make the configured adapter. Opens no connection.

    Args:
        instance_key: whose messages it will carry.
        table: the settings; read with `read_config(path)` unless given.
        path: a TOML file.
        environ: `os.environ` unless given.

    Raises:
        InvalidArgument: no well-formed instance key; checked first.
        ConfigError: a setting is missing, unknown or out of range.
    """
    require_instance_key(instance_key)
    table = read_config(path, environ=environ) if table is None else table
    settings = Settings.of(table, environ)
    kind = settings.text("kind", "none")
    if kind in _SHIPPED:
        adapter = _SHIPPED[kind](instance_key, settings)
        settings.done()
        return adapter
    for entry in entry_points(group=ENTRY_POINT_GROUP, name=kind):
        return _own(entry, instance_key, table)
    raise ConfigError(
        f"kind is none of {', '.join(sorted(_SHIPPED))}, and no installed package has an entry"
        f" point {ENTRY_POINT_GROUP} of that name"
    )


def _own(entry: EntryPoint, instance_key: str, table: Mapping[str, Any]) -> Adapter:
    """Make an adapter of a package; whatever it raises is told by its type alone."""
    wrong = "the entry point of this kind didn't return an adapter"
    try:
        made: object = entry.load()(instance_key, dict(table))
    except InvalidArgument:
        raise
    except Exception as error:  # noqa: BLE001
        wrong = f"the entry point of this kind raised {type(error).__name__}"
    else:
        if isinstance(made, Adapter):
            return made
    raise ConfigError(wrong)


def _none(instance_key: str, settings: Settings) -> Adapter:
    from trex_client.adapters.none import NoneAdapter

    del instance_key, settings
    return NoneAdapter()


def _http(instance_key: str, settings: Settings) -> Adapter:
    from trex_client.adapters.http import HttpAdapter, HttpConfig

    return HttpAdapter(instance_key, HttpConfig.read(settings))


def _postgres(instance_key: str, settings: Settings) -> Adapter:
    from trex_client.adapters.postgres import PostgresAdapter, PostgresConfig

    return PostgresAdapter(instance_key, PostgresConfig.read(settings))


_SHIPPED: dict[str, Callable[[str, Settings], Adapter]] = {
    "none": _none,
    "http": _http,
    "postgres": _postgres,
}
