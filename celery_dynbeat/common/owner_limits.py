"""The limits that ``dynbeat_owner_limits`` sets for an owner. PURE.

A setting for all owners, such as ``dynbeat_min_interval``, applies if the owner has no value.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import timedelta
from importlib import import_module
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.common.events import Event
from celery_dynbeat.common.text import described_owner, shorten, suggestion

logger = logging.getLogger(__name__)

SETTING = "dynbeat_owner_limits"
MAX_NAME_LENGTH = 255
#: The same as MAX_DURATION of the settings, which import this module late.
_MAX_INTERVAL = timedelta(days=36_525)
#: Seconds between two log records about a function that fails.
_WARN_EVERY = 60.0


def _check_cap(name: str, value: Any) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise _invalid(
            name, value, "must be a whole number from 1; to stop an owner, hold its schedules"
        )


def _invalid(name: str, value: object, rule: str) -> ConfigurationError:
    return ConfigurationError(f"{SETTING}: {name} = {shorten(value)}: {rule}")


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerLimits:
    """The limits of one owner.

    - ``max_schedules``: how many schedules the owner may have.
    - ``min_interval``: the shortest time between two fire times, as a timedelta or a number of
      seconds. 0 means no limit.
    - ``allowed_tasks``: patterns of the tasks that may run, such as ``"report.*"``.
    - ``max_running``: how many runs may have a place at the same time. A run has its place from
      when it is sent until it ends. It has none while it waits for a retry that beat sends.
    - ``running_key``: the key by which ``max_running`` counts. Owners with the same key share their
      places. None means the owner.

    None means that the individual setting applies, such as ``dynbeat_max_schedules_per_owner``.
    Raises ConfigurationError for an invalid value.
    """

    max_schedules: int | None = None
    min_interval: timedelta | None = None
    allowed_tasks: Sequence[str] | None = None
    max_running: int | None = None
    running_key: str | None = None

    def __post_init__(self) -> None:
        _check_cap("max_running", self.max_running)
        key = self.running_key
        is_key = isinstance(key, str) and 0 < len(key) <= MAX_NAME_LENGTH and "\0" not in key
        if key is not None and not is_key:
            raise _invalid("running_key", key, "must be a text of 1 to 255 characters")
        most = self.max_schedules
        is_count = isinstance(most, int) and not isinstance(most, bool) and most >= 0
        if most is not None and not is_count:
            raise _invalid("max_schedules", most, "must be a whole number from 0")
        if self.min_interval is not None:
            object.__setattr__(self, "min_interval", _interval(self.min_interval))
        if self.allowed_tasks is not None:
            object.__setattr__(self, "allowed_tasks", _patterns(self.allowed_tasks))

    @classmethod
    def of(cls, given: object) -> "OwnerLimits":
        """Return the limits that a table or a function gave: OwnerLimits, a dict, or None.

        Raises ConfigurationError.
        """
        if given is None:
            return _NO_LIMITS
        if isinstance(given, cls):
            return given
        known = [each.name for each in fields(cls)]
        if not isinstance(given, Mapping):
            message = (
                f"{SETTING}: {shorten(given)} must be OwnerLimits, a dict of its fields, or None"
            )
            raise ConfigurationError(message)
        for name in given:
            if name not in known:
                rule = f"there is no such limit; {suggestion(name, known)}"
                raise _invalid(str(name)[:40], given[name], rule)
        return cls(**given)


_NO_LIMITS = OwnerLimits()
#: A function of the name of an owner.
LimitFunction: TypeAlias = Callable[[str], "OwnerLimits | Mapping[str, Any] | None"]


class Limit(NamedTuple):
    """One value of a limit, the owner that has it, and the setting that contains it."""

    value: Any
    owner: str
    setting: str

    @property
    def whose(self) -> str:
        """The owner, in words."""
        return described_owner(self.owner)

    @property
    def named(self) -> str:
        """The setting, and the owner that has the limit if the setting has several."""
        of = f" of {self.whose}" if self.setting.startswith(SETTING) else ""
        return f"{self.setting}{of}"


class Cap(NamedTuple):
    """How many runs with a place ``key`` may have."""

    limit: Limit
    key: str


class LimitsByOwner:
    """The limits that the setting gives to owners, by name.

    ``given`` is a table, a function, or the dotted path of a function or a table. A path is
    imported at its first use, because the module may import the application.
    """

    def __init__(self, given: "Mapping[str, OwnerLimits] | LimitFunction | str") -> None:
        self._given = given
        #: When the failure of a function was last logged, by the monotonic clock.
        self.warned_at: float | None = None

    def __repr__(self) -> str:
        # Without an address, because beat compares the representation of the settings after a
        # restart.
        given = self._given
        name = getattr(given, "__qualname__", type(given).__name__) if callable(given) else given
        return f"{type(self).__name__}({name!r})"

    def of(self, name: str) -> OwnerLimits:
        """Return the limits of an owner.

        Raises ConfigurationError if they are invalid, and the error of a function that fails.
        """
        if isinstance(self._given, str):
            self._given = _imported(self._given)
        if isinstance(self._given, Mapping):
            return self._given.get(name, _NO_LIMITS)
        return OwnerLimits.of(self._given(name))

    def value(self, owner: str, field: str) -> Limit | None:
        """Return the owner's own value of a field, or None if the individual setting applies."""
        value = getattr(self.of(owner), field)
        return None if value is None else Limit(value, owner, f"{SETTING}: {field}")

    @property
    def may_cap_runs(self) -> bool:
        """Whether an owner can have a limit on its runs.

        If the setting is a function, any owner may have one.
        """
        if not isinstance(self._given, Mapping):
            return True
        return any(each.max_running for each in self._given.values())

    def knows(self, owner: str) -> bool:
        """Return whether the limits of the owner were read without an error."""
        del owner
        return True

    def for_pass(self) -> "LimitsByOwner":
        """Return limits for one pass, which read each name only once and raise no error."""
        return _LimitsOfPass(self)


class _LimitsOfPass(LimitsByOwner):
    """The limits while beat plans many schedules, or a page shows them.

    A function that fails must not quarantine schedules. If it fails, the individual settings apply
    to the owner, and at most one log record per minute reports this.
    """

    def __init__(self, limits: LimitsByOwner) -> None:
        super().__init__({})
        self._limits = limits
        self._known: dict[str, OwnerLimits] = {}
        self._failed: set[str] = set()

    @property
    def may_cap_runs(self) -> bool:
        return self._limits.may_cap_runs

    def knows(self, owner: str) -> bool:
        return owner not in self._failed

    def of(self, name: str) -> OwnerLimits:
        known = self._known.get(name)
        if known is None:
            known = self._known[name] = self._asked(name)
        return known

    def for_pass(self) -> LimitsByOwner:
        return self

    def _asked(self, name: str) -> OwnerLimits:
        try:
            return self._limits.of(name)
        # This is a function of the operator, which may raise anything.
        except Exception:
            self._failed.add(name)
            source, now = self._limits, monotonic()
            if source.warned_at is None or now - source.warned_at >= _WARN_EVERY:
                source.warned_at = now
                logger.warning(
                    "%s failed for %r: the single settings apply to it, such as"
                    " dynbeat_min_interval; correct the function",
                    SETTING,
                    name,
                    exc_info=True,
                    extra={"event": Event.OWNER_LIMITS_FAILED, "owner": name},
                )
            return _NO_LIMITS


def cap_of(owner: str, limits: LimitsByOwner | None, *, max_running: int | None) -> Cap | None:
    """Return the limit on the runs of an owner, or None. ``max_running`` is the default.

    The application itself (owner ``""``) has no limit. Raises as ``LimitsByOwner.of`` does.
    """
    if not owner:
        return None
    own = None if limits is None else limits.value(owner, "max_running")
    if own is None and max_running is not None:
        own = Limit(max_running, owner, "dynbeat_max_running_per_owner")
    if own is None:
        return None
    key = None if limits is None else limits.of(owner).running_key
    return Cap(own, key or owner)


def owner_limits(value: object) -> LimitsByOwner:
    """Return the limits that the setting gives. Raises ValueError and ConfigurationError."""
    if callable(value):
        return LimitsByOwner(value)
    if isinstance(value, Mapping):
        return LimitsByOwner(_table(value))
    if isinstance(value, str) and all(map(str.isidentifier, value.split("."))) and "." in value:
        return LimitsByOwner(value)
    msg = (
        "must be a dict of limits by owner, a function that returns the limits of an owner,"
        " or the dotted path of one, such as 'proj.plans.limits_of'"
    )
    raise ValueError(msg)


def _table(given: Mapping[Any, Any]) -> Mapping[str, OwnerLimits]:
    for name in given:
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH:
            msg = (
                f"the key {shorten(name)} must be an owner; for all owners use the single settings"
            )
            raise ValueError(msg)
    return {name: OwnerLimits.of(limits) for name, limits in given.items()}


def _imported(path: str) -> "Mapping[str, OwnerLimits] | LimitFunction":
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        message = f"{SETTING} = {path!r}: cannot be imported ({error}); correct the path"
        raise ConfigurationError(message) from error
    if callable(found):
        return found  # type: ignore[no-any-return]
    if isinstance(found, Mapping):
        return _table(found)
    message = f"{SETTING} = {path!r}: must be the path of a function or a dict"
    raise ConfigurationError(message)


def _interval(value: Any) -> timedelta:
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= _MAX_INTERVAL.total_seconds():
        rule = "must be a timedelta or a number of seconds, from 0 to 100 years"
        raise _invalid("min_interval", value, rule)
    return timedelta(seconds=seconds)


def _patterns(value: Any) -> tuple[str, ...]:
    try:
        patterns = () if isinstance(value, (str, bytes, Mapping)) else tuple(value)
    except TypeError:
        patterns = (None,)
    is_list = not isinstance(value, (str, bytes, Mapping))
    if not is_list or not all(isinstance(each, str) and each for each in patterns):
        raise _invalid("allowed_tasks", value, "must be a list of names, in which * matches any")
    return patterns
