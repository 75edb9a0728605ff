"""Every error that this package raises on purpose.

Each message names the value, the rule and the cure. What a program may want to read is an
attribute too.
"""


class DynbeatError(Exception):
    """The root of all errors of this package."""


class ConfigurationError(DynbeatError):
    """A setting is unknown, malformed, or does not fit the installed drivers."""


class SchemaError(DynbeatError):
    """The tables are missing or are not the ones that this version works with."""


class InvalidTriggerError(DynbeatError, ValueError):
    """A trigger can never be evaluated: wrong text, unknown zone, impossible date.

    ``field`` names the part at fault (``"minute"``, ``"timezone"``, ``"interval"`` ...), or is
    None when the whole is.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidScheduleError(DynbeatError, ValueError):
    """A schedule breaks a rule: a name too long, a payload that is not JSON, an option refused.

    ``field`` names the argument at fault.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ScheduleNotFoundError(DynbeatError, LookupError):
    """The owner has no schedule of that name."""

    def __init__(self, *, owner: str, name: str) -> None:
        super().__init__(
            f"owner {owner!r} has no schedule named {name!r}; list() shows those that exist",
        )
        self.owner = owner
        self.name = name


class BackfillNotFoundError(DynbeatError, LookupError):
    """The schedule has no backfill of that id, or none at all (``backfill_id`` None)."""

    def __init__(self, *, owner: str, name: str, backfill_id: int | None) -> None:
        which = "no backfill" if backfill_id is None else f"no backfill {backfill_id}"
        super().__init__(
            f"schedule {name!r} of owner {owner!r} has {which}; backfills() shows those that exist",
        )
        self.owner = owner
        self.name = name
        self.backfill_id = backfill_id


class ScheduleExistsError(DynbeatError):
    """The owner already has a schedule of that name."""

    def __init__(self, *, owner: str, name: str) -> None:
        super().__init__(
            f"owner {owner!r} already has a schedule named {name!r}; names are unique for each"
            " owner: choose another name, or call upsert() to change it",
        )
        self.owner = owner
        self.name = name


class StaleScheduleError(DynbeatError):
    """The schedule was changed by somebody else since the caller read it."""

    def __init__(self, *, owner: str, name: str, expected_version: int, version: int) -> None:
        super().__init__(
            f"schedule {name!r} of owner {owner!r} is at version {version}, not"
            f" {expected_version}: somebody changed it meanwhile; read it again and repeat the"
            " edit",
        )
        self.owner = owner
        self.name = name
        self.expected_version = expected_version
        self.version = version


class OwnerLimitError(DynbeatError):
    """An owner may not have or do more than the settings allow.

    ``setting`` is the limit's name, ``limit`` its value.
    """

    def __init__(self, message: str, *, owner: str, setting: str, limit: object) -> None:
        super().__init__(message)
        self.owner = owner
        self.setting = setting
        self.limit = limit


class DispatchError(DynbeatError):
    """A run could not be handed to the broker, for a reason that lies in the run itself.

    A broker that is merely away is not a DispatchError: its runs stay pending and are sent later.
    """
