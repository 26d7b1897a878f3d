"""API keys: who a request comes from, and what that key may use. Ray-free; knows no HTTP app.

The keys file holds SHA-256 hashes, never keys: a key is 32 random bytes, so that one round of a
fast hash is enough (a stretched hash protects guessable passwords, at a cost per request). Nothing
here writes a key or a hash to a message, a log or a config dump.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from hymotion_ray.config.fields import require
from hymotion_ray.engine.serve.metrics import ANONYMOUS
from hymotion_ray.errors import ConfigError, OutputError
from hymotion_ray.formats.atomic import read_bytes

KEY_PREFIX = "hmr_"
KEYS_SCHEMA_VERSION = 1
MAX_KEYS = 10_000
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("requests_per_minute", "queued_clip_seconds", "gpu_seconds_per_day")
_FIELDS = frozenset(["name", "sha256", "enabled", "expires", "models", *_LIMITS])


class Refusal(Exception):  # noqa: N818 - an answer, not a fault
    """A request that is not served. `status` and `code` for the answer, seconds for Retry-After."""

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(status, code, message, retry_after_s)
        self.status, self.code, self.message = status, code, message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, kw_only=True)
class KeyLimits:
    """What a key may use; None: no limit."""

    requests_per_minute: float | None = None
    """Requests a minute that ask for work, with a burst of the same number."""
    queued_clip_seconds: float | None = None
    """Seconds of motion that may wait or run at once."""
    gpu_seconds_per_day: float | None = None
    """Device seconds a UTC day."""

    def __post_init__(self) -> None:
        for name in _LIMITS:
            value = getattr(self, name)
            require(value is None or 0 < value < 1e12, name, value, "a number above 0, or none")


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who a request comes from. Holds no secret."""

    name: str
    limits: KeyLimits = KeyLimits()
    models: tuple[str, ...] | None = None
    """Models that the key may use; None: all."""

    def require_model(self, model: str) -> None:
        """Raise the `Refusal` 403 for a model that the key may not use."""
        if self.models is not None and model not in self.models:
            raise Refusal(
                403,
                "model_not_allowed",
                f"this key may not use the model {model!r}; allowed: {', '.join(self.models)}",
            )


@dataclass(frozen=True)
class _Entry:
    caller: Caller
    digest: bytes = field(repr=False)
    enabled: bool
    expires: datetime.date | None


@dataclass(frozen=True)
class KeyRing:
    """The keys of a file. With none configured, everyone is `anonymous` and unlimited."""

    _entries: tuple[_Entry, ...] = field(default=(), repr=False)
    is_open: bool = True
    """Whether requests need no key."""

    def identify(self, authorization: str | None, today: datetime.date | None = None) -> Caller:
        """The caller behind an `Authorization` header; `Refusal` 401 or 403 with the reason.

        Every key of the file is compared, each in constant time, so that the time tells nothing.
        """
        if self.is_open:
            return Caller(name=ANONYMOUS)
        scheme, _, key = (authorization or "").strip().partition(" ")
        if not authorization:
            raise Refusal(401, "key_missing", "this server needs a key: Authorization: Bearer KEY")
        if scheme.lower() != "bearer" or not key.strip():
            raise Refusal(401, "key_malformed", "Authorization must read: Bearer KEY")
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for entry in self._entries:
            if hmac.compare_digest(entry.digest, digest):
                found = entry
        if found is None:
            raise Refusal(401, "key_unknown", "the key is not known to this server")
        if not found.enabled:
            raise Refusal(403, "key_disabled", "the key is switched off; ask who runs this server")
        today = today or datetime.datetime.now(datetime.UTC).date()
        if found.expires is not None and today > found.expires:
            raise Refusal(403, "key_expired", f"the key ended on {found.expires.isoformat()}")
        return found.caller

    def named(self, name: str) -> Caller | None:
        """The caller of a name, for work that outlived its request; None: no longer allowed."""
        if self.is_open:
            return Caller(name=name)
        today = datetime.datetime.now(datetime.UTC).date()
        for entry in self._entries:
            is_over = entry.expires is not None and today > entry.expires
            if entry.caller.name == name and entry.enabled and not is_over:
                return entry.caller
        return None


def new_key() -> tuple[str, str]:
    """A new key, shown once to its owner, and the `sha256` for the keys file."""
    key = KEY_PREFIX + secrets.token_urlsafe(32)
    return key, hashlib.sha256(key.encode()).hexdigest()


def read_keys(path: str | None) -> KeyRing:
    """The keys of a YAML or JSON file at a path or URL; None: an open server.

    `ConfigError` names the entry and the field at fault, never what it holds.
    """
    if path is None:
        return KeyRing()
    try:
        document = yaml.safe_load(read_bytes(path))
    except OutputError as error:
        raise ConfigError(f"the keys file cannot be read: {error}") from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError):
        # from None: the parser's message quotes the file
        raise ConfigError(f"{path} is no YAML or JSON; see docs/serving-client.md") from None
    if not isinstance(document, Mapping) or set(document) != {"schema", "keys"}:
        raise ConfigError(f"{path} must hold `schema: {KEYS_SCHEMA_VERSION}` and `keys:`, no more")
    if document["schema"] != KEYS_SCHEMA_VERSION:
        raise ConfigError(f"{path} has another schema than {KEYS_SCHEMA_VERSION}; update one side")
    rows = document["keys"]
    if not isinstance(rows, list) or not 0 < len(rows) <= MAX_KEYS:
        raise ConfigError(f"{path}: `keys` must be a list of 1 to {MAX_KEYS} keys")
    entries = tuple(_entry(row, f"{path}: keys[{number}]") for number, row in enumerate(rows))
    for what, values in (
        ("name", [entry.caller.name for entry in entries]),
        ("sha256", [entry.digest for entry in entries]),
    ):
        if len(set(values)) < len(values):
            raise ConfigError(f"{path}: two keys have one {what}; every key needs its own")
    return KeyRing(entries, is_open=False)


def _entry(row: Any, where: str) -> _Entry:
    if not isinstance(row, Mapping) or not {"name", "sha256"} <= set(row):
        raise ConfigError(f"{where} must be a mapping with `name` and `sha256`")
    if num_unknown := len(set(row) - _FIELDS):
        # Not even their names: a key may stand in the wrong place.
        raise ConfigError(
            f"{where} has {num_unknown} unknown field(s); allowed: {', '.join(sorted(_FIELDS))}"
        )
    name, digest = row["name"], row["sha256"]
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == ANONYMOUS:
        raise ConfigError(f"{where}.name must be 1 to 64 of a-z, 0-9, - and _, not {ANONYMOUS}")
    if not isinstance(digest, str) or not _HEX.fullmatch(digest.lower()):
        raise ConfigError(f"{where}.sha256 must be the 64 hex digits of a hash, not the key itself")
    enabled, expires, models = row.get("enabled", True), row.get("expires"), row.get("models")
    if not isinstance(enabled, bool):
        raise ConfigError(f"{where}.enabled must be true or false")
    if isinstance(expires, str):
        try:
            expires = datetime.date.fromisoformat(expires)
        except ValueError:
            raise ConfigError(f"{where}.expires must be a date as in 2027-01-31") from None
    if expires is not None and type(expires) is not datetime.date:
        raise ConfigError(f"{where}.expires must be a date as in 2027-01-31")
    if models is not None and not (
        isinstance(models, list) and models and all(isinstance(m, str) for m in models)
    ):
        raise ConfigError(f"{where}.models must be a list of model names")
    caller = Caller(
        name=name, limits=_limits(row, where), models=None if models is None else tuple(models)
    )
    return _Entry(caller, bytes.fromhex(digest), enabled, expires)


def _limits(row: Mapping[str, Any], where: str) -> KeyLimits:
    values = {}
    for name in _LIMITS:
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ConfigError(f"{where}.{name} must be a number above 0")
        values[name] = value
    try:
        return KeyLimits(**values)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error
