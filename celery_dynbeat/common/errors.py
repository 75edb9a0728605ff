"""The errors that this package raises.

Each message names the value, the rule and the fix. Facts that a program may need are attributes.
"""

from collections.abc import Sequence
from datetime import datetime

from celery_dynbeat.common.text import described_owner, shorten


class DynbeatError(Exception):
    """The base class of all errors of this package."""


class ConfigurationError(DynbeatError):
    """A setting is unknown or invalid, or needs a driver that is not installed."""


class SchemaError(DynbeatError):
    """The tables are missing, or their schema does not fit this version."""


class InvalidTriggerError(DynbeatError, ValueError):
    """A trigger cannot be evaluated: invalid text, unknown time zone, impossible date.

    ``field`` names the invalid part (``"minute"``, ``"timezone"``, ``"interval"`` ...), or is None
    for the whole trigger.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


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


class InvalidScheduleError(DynbeatError, ValueError):
    """A schedule breaks a rule. For example, its name is too long, or its payload is not JSON.

    ``field`` names the invalid argument.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class CalendarNotFoundError(DynbeatError, LookupError):
    """There is no calendar with this name."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"there is no calendar {name!r}; list() shows those that exist")
        self.name = name


class CalendarInUseError(DynbeatError):
    """A calendar cannot be deleted, because ``schedules`` schedules or ``used_by`` use it.

    If ``is_exact`` is false, there are more schedules.
    """

    def __init__(
        self, *, name: str, schedules: int, is_exact: bool, used_by: str | None = None
    ) -> None:
        number = f"{schedules:,} schedules" if is_exact else f"more than {schedules:,} schedules"
        super().__init__(
            f"the calendar {name!r} is used by {used_by or number}: give them other triggers or"
            " quiet hours first, or upsert(dates=[], allow_empty=True)",
        )
        self.name = name
        self.schedules = schedules
        self.is_exact = is_exact


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


class ScheduleNotFoundError(DynbeatError, LookupError):
    """The owner has no schedule with this name."""

    def __init__(self, *, owner: str, name: str) -> None:
        super().__init__(
            f"owner {owner!r} has no schedule named {name!r}; list() shows those that exist",
        )
        self.owner = owner
        self.name = name


class RunNotFoundError(DynbeatError, LookupError):
    """The history has no run with this id, or the run belongs to another owner.

    ``owner`` is None if the call was not limited to one owner.
    """

    def __init__(self, *, owner: str | None, run_id: str) -> None:
        whose = "the history" if owner is None else f"the history of {described_owner(owner)}"
        super().__init__(
            f"{whose} has no run {run_id}; runs() shows those that exist, and old runs are pruned",
        )
        self.owner = owner
        self.run_id = run_id


class BatchNotFoundError(DynbeatError, LookupError):
    """The history has no run of this batch, or none of the owner.

    ``owner`` is None if the call was not limited to one owner.
    """

    def __init__(self, *, owner: str | None, batch_id: str) -> None:
        whose = "the history" if owner is None else f"the history of {described_owner(owner)}"
        super().__init__(f"{whose} has no run of batch {batch_id}; old runs are pruned")
        self.owner = owner
        self.batch_id = batch_id


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


class ScheduleExistsError(DynbeatError):
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
        super().__init__(f"{message}; {rule}")
        self.indexes = indexes
        self.owner = owner
        self.name = name


class StaleScheduleError(DynbeatError):
    """Another caller has changed the schedule since this caller read it."""

    def __init__(self, *, owner: str, name: str, expected_version: int, version: int) -> None:
        super().__init__(
            f"schedule {name!r} of owner {owner!r} is at version {version}, not"
            f" {expected_version}: another caller has changed it; read it again and repeat the"
            " edit",
        )
        self.owner = owner
        self.name = name
        self.expected_version = expected_version
        self.version = version


class ScheduleHeldError(DynbeatError):
    """``run_now()`` is refused, because a hold is in force.

    ``owner`` is the owner that is held, or None if everything is held. ``actor``, ``reason`` and
    ``until_at`` are those of the hold. ``hold`` says all of this in words.
    """

    def __init__(
        self, *, owner: str | None, actor: str, reason: str, until_at: datetime | None
    ) -> None:
        scope = "everything" if owner is None else described_owner(owner)
        by = f" by {shorten(actor)}" if actor else ""
        end = "" if until_at is None else f" until {until_at}"
        why = f" ({shorten(reason)})" if reason else ""
        self.hold = f"{scope} is held{by}{end}{why}"
        super().__init__(f"{self.hold}: wait for the end of the hold, or call release() first")
        self.owner = owner
        self.actor = actor
        self.reason = reason
        self.until_at = until_at


class OwnerLimitError(DynbeatError):
    """A call would create more schedules than a limit allows.

    ``owner`` has ``used`` schedules, the call would create ``wanted`` more, and the owner may have
    at most ``limit``. ``setting`` is the name of the setting.
    """

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
        self.owner = owner
        self.used = used
        self.wanted = wanted
        self.limit = limit
        self.setting = setting


class DispatchError(DynbeatError):
    """The broker cannot accept a run because of its content.

    An unreachable broker causes no DispatchError: the runs stay pending and are sent later.
    """
