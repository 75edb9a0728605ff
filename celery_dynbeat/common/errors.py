"""The errors that this package raises.

Each message names the value, the rule and the fix, for a developer. ``user_message`` is a short
sentence for the person who typed the value. Facts that a program may need are attributes.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Self

from celery_dynbeat.common.text import cut, described_owner

#: The codes of InvalidArgumentError. ``{...}`` are the params of the error.
ARGUMENTS: Mapping[str, str] = {
    "invalid": "This value is not valid.",
    "required": "Enter a value.",
    "type": "This value has the wrong form.",
    "characters": "Remove control characters, and white space at the beginning and the end.",
    "too_long": "Use at most {maximum} characters.",
    "too_many": "At most {maximum} are possible.",
    "too_large": "This is too much data: at most {maximum} bytes are possible.",
    "range": "Choose a value from {minimum} to {maximum}.",
    "choice": "Choose one of these: {choices}.",
    "unknown": "There is no {name}.",
    "json": "Enter valid JSON.",
    "instant": "Enter a date and a time.",
    "past": "Choose a time in the future.",
    "future": "Choose a time in the past.",
    "order": "The end must not be before the start.",
    "zone": "Choose a time zone, such as Europe/Berlin.",
    "rule": "This rule cannot be read. Check its {part}.",
    "never_fires": "This rule has no time left at which it fires.",
    "too_often": "This rule fires too often. The shortest interval is {minimum}.",
    "not_a_fire_time": "Nothing is planned for this time.",
    "not_allowed": "This task is not allowed.",
    "no_time": "These quiet hours leave no time.",
}
#: The codes of ConflictError.
CONFLICTS: Mapping[str, str] = {
    "exists": "The name {name} is already in use. Choose another name.",
    "stale": "It was changed in the meantime. Load it again, and repeat your change.",
    "held": "This is stopped at the moment. Try again later.",
    "in_use": "It is still in use.",
    "unfinished": "The run has not ended yet.",
    "ended": "It has already ended.",
    "deleted": "The schedule was deleted.",
    "not_run": "There was no run at this time.",
    "has_run": "The run of this time exists already.",
}
#: The other codes.
OTHERS: Mapping[str, str] = {
    "not_found": "This {kind} does not exist.",
    "limit": "You can have at most {maximum} schedules.",
    "error": "This did not work. Try again later.",
}
#: The sentences for end users, by code.
MESSAGES: Mapping[str, str] = {**ARGUMENTS, **CONFLICTS, **OTHERS}


#: Characters of a value, and of a list of choices, in such a sentence.
_SHOWN, _LIST_SHOWN = 60, 95


def _shown(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    if isinstance(value, (tuple, list)):
        return cut(", ".join(map(str, value)), _LIST_SHOWN)
    return cut(str(value), _SHOWN)


class DynbeatError(Exception):
    """The base class of all errors of this package.

    ``code`` says what is wrong, from a closed list, and ``params`` has the values of the sentence
    that ``user_message`` returns. The class tells which kind of error it is: see the reference.
    """

    code = "error"
    #: The values in the sentence of the code.
    params: Mapping[str, Any] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state of the error, because the arguments of the classes differ."""
        return _restored, (type(self), self.args, self.__dict__)

    @property
    def user_message(self) -> str:
        """A sentence for an end user. It names no call, argument or setting."""
        return self.worded(str)

    def worded(self, translate: Callable[[str], str]) -> str:
        """Return ``user_message`` with the sentence of the code translated, such as by gettext."""
        shown = {name: _shown(value) for name, value in self.params.items()}
        return translate(MESSAGES[self.code]).format_map(shown)


def _restored(cls: type[DynbeatError], args: tuple[Any, ...], state: Mapping[str, Any]) -> Any:
    error = cls.__new__(cls)
    error.args = args
    vars(error).update(state)
    return error


class ConfigurationError(DynbeatError):
    """A setting or the tables do not fit.

    A setting is unknown or invalid, or needs a driver that is not installed. Or the tables are
    missing, or their schema does not fit this version.
    """


class SchemaError(ConfigurationError):
    """The tables are missing, or their schema does not fit this version."""


class InvalidArgumentError(DynbeatError, ValueError):
    """An argument breaks a rule. For example, a name is too long, or a payload is not JSON.

    ``field`` names the argument, or is None.
    """

    def __init__(
        self, message: str, *, field: str | None = None, code: str = "invalid", **params: Any
    ) -> None:
        super().__init__(message)
        self.field, self.code, self.params = field, code, params

    def saying(self, message: str) -> Self:
        """Return the same error with another text."""
        error = copy(self)
        error.args = (message,)
        return error


class InvalidTriggerError(InvalidArgumentError):
    """A trigger cannot be evaluated: invalid text, unknown time zone, impossible date.

    ``field`` names the invalid part (``"minute"``, ``"timezone"``, ``"interval"`` ...), or is None
    for the whole trigger.
    """

    def __init__(
        self, message: str, *, field: str | None = None, code: str = "", **params: Any
    ) -> None:
        if not code:
            part = "spelling" if field in _WHOLE else str(field).replace("_", " ")
            code, params = ("zone", {}) if field == "timezone" else ("rule", {"part": part})
        super().__init__(message, field=field, code=code, **params)


#: The fields that name no part of a rule.
_WHOLE = frozenset({None, "trigger", "spec", "kind"})


class UnknownZoneError(InvalidTriggerError):
    """The tz database of this process has no zone of this name. A newer one may have it."""


def concerns_process(error: BaseException) -> bool:
    """Return whether ``error`` is a fault of this process, which no row causes.

    It has no memory or no file descriptors, cannot import a module, or is at its recursion limit.
    """
    if isinstance(error, RecursionError):
        return not _has_stack(_MIN_STACK)
    return isinstance(error, (ImportError, MemoryError, OSError))


#: Calls that a process can nest if its stack is not exhausted. A row alone uses the rest.
_MIN_STACK = 200


def _has_stack(depth: int) -> bool:
    try:
        return depth == 0 or _has_stack(depth - 1)
    except RecursionError:
        return False


class UnresolvedCalendarError(DynbeatError, RuntimeError):
    """A search for fire times needs the days of calendars that have not been read.

    ``names`` are the calendars. It is an error of the calling code, not of the trigger.
    """

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"the trigger names calendars ({', '.join(names)}), and their days are not known here:"
            " call trigger.resolved() with the CalendarDays of each name",
        )
        self.names = tuple(names)


class NotFoundError(DynbeatError, LookupError):
    """There is no such schedule, run, batch or calendar, or it belongs to another owner.

    ``kind`` is ``"schedule"``, ``"run"``, ``"batch"`` or ``"calendar"``, and ``name`` its name or
    id. ``owner`` is None if the call was not limited to one owner.
    """

    code = "not_found"

    def __init__(self, kind: str, name: str, *, owner: str | None = None) -> None:
        whose = "the history" if owner is None else f"the history of {described_owner(owner)}"
        messages = {
            "schedule": f"owner {owner!r} has no schedule named {name!r}; list() shows those that"
            " exist",
            "run": f"{whose} has no run {name}; runs() shows those that exist, and old runs are"
            " pruned",
            "batch": f"{whose} has no run of batch {name}; old runs are pruned",
            "calendar": f"there is no calendar {name!r}; list() shows those that exist",
        }
        super().__init__(messages[kind])
        self.kind, self.name, self.owner = kind, name, owner
        self.params = {"kind": kind}


class ConflictError(DynbeatError):
    """The call does not fit the present state: the name exists, or the run has ended.

    ``field`` names the argument. ``code`` says why, and ``params`` has the facts:

    - ``"stale"``: another caller has changed the schedule. ``owner``, ``name``,
      ``expected_version`` and ``version``.
    - ``"held"``: ``run_now()`` during a hold. ``owner`` (None: everything), ``actor``, ``reason``
      and ``until_at`` of the hold; ``hold`` says all of this in words.
    - ``"in_use"``: a schedule or the quiet hours of an owner use the calendar. ``name``,
      the number of ``schedules``, of which there are more if ``is_exact`` is false, and
      ``used_by`` in words.
    """

    def __init__(
        self, message: str, *, code: str = "error", field: str | None = None, **params: Any
    ) -> None:
        super().__init__(message)
        self.field, self.code, self.params = field, code, params


class UnusableCalendarError(DynbeatError):
    """A schedule cannot be planned with the present days of its calendars.

    Beat stores the error in the row of the schedule. It removes the error when it plans the
    schedule after the next edit of a calendar. ``names`` are the calendars.
    """

    def __init__(
        self,
        names: Sequence[str],
        reason: str = "it has no fire time left",
        *,
        fix: str = "remove days with dynbeat.calendars.upsert(), which plans the schedule again",
    ) -> None:
        many = "calendars" if names[1:] else "calendar"
        super().__init__(
            f"with the {many} {', '.join(names)}, {reason}: {fix}, or give it another trigger"
            " with update()",
        )
        self.names = tuple(names)

    @classmethod
    def from_trigger_error(
        cls, names: Sequence[str], error: InvalidTriggerError
    ) -> "UnusableCalendarError":
        """Return the error of a schedule that uses the calendars and raises ``error``."""
        reason = f"it cannot be planned ({error})"
        if error.field != "calendar":
            return cls(names, reason)
        # A calendar is missing. upsert() of a new calendar searches for no schedules.
        fix = "after upsert(), call resume() of the schedule, which plans it"
        return cls(names, reason, fix=fix)

    @classmethod
    def is_named_in(cls, stored: str) -> bool:
        """Return whether the stored error of a schedule is one of this class."""
        return stored.startswith(f"{cls.__name__}: ")


class TransactionRolledBackError(DynbeatError):
    """During a call that joins a transaction, the database rolled back the whole transaction.

    MySQL and MariaDB do this after a deadlock. Everything that the transaction did before the call
    is undone as well. ``__cause__`` is the error from SQLAlchemy.
    """

    def __init__(self) -> None:
        super().__init__(
            "the database has rolled back the whole transaction because of a deadlock: call"
            " rollback() on the session, and run the transaction again from its beginning",
        )


class ScheduleExistsError(ConflictError):
    """The owner already has a schedule with this name, or ``create_many`` got the name twice.

    In the second case, ``indexes`` are the positions of the two schedules, counted from 0.
    """

    def __init__(self, *, owner: str, name: str, indexes: tuple[int, int] | None = None) -> None:
        rule = "names are unique for each owner: choose another name"
        if indexes is None:
            message = f"owner {owner!r} already has a schedule named {name!r}"
            rule = f"{rule}, or call upsert() to change it"
        else:
            first, second = indexes
            message = (
                f"schedules {first} and {second} of create_many are both named {name!r} for owner"
                f" {owner!r}"
            )
        super().__init__(f"{message}; {rule}", code="exists", field="name", name=name)
        self.indexes = indexes
        self.owner = owner
        self.name = name


class LimitError(DynbeatError):
    """A call would create more schedules than a limit allows.

    ``owner`` has ``used`` schedules, the call would create ``wanted`` more, and the owner may have
    at most ``limit``. ``setting`` is the name of the setting.
    """

    code = "limit"

    def __init__(
        self,
        message: str,
        *,
        owner: str,
        used: int,
        wanted: int,
        limit: int,
        setting: str,
    ) -> None:
        super().__init__(message)
        self.params = {"maximum": limit}
        self.owner = owner
        self.used = used
        self.wanted = wanted
        self.limit = limit
        self.setting = setting


class DispatchError(DynbeatError):
    """The broker cannot accept a run because of its content.

    An unreachable broker causes no DispatchError: the runs stay pending and are sent later.
    """
