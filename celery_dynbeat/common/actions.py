"""What an edit does, for the audit."""

from enum import StrEnum


class Action(StrEnum):
    """The action of a row of ``dynbeat_change``. Programs filter by it: a name does not change."""

    CREATE = "create"
    UPDATE = "update"
    PAUSE = "pause"
    RESUME = "resume"
    DELETE = "delete"
    SKIP = "skip"
    UNSKIP = "unskip"
    RUN_NOW = "run_now"
    BACKFILL = "backfill"
    CANCEL = "cancel"
    RERUN = "rerun"
    RERUN_MANY = "rerun_many"
    CANCEL_REQUEST = "cancel_request"
    HOLD = "hold"
    RELEASE = "release"
    SET_TIMEZONE = "set_timezone"
    ACKNOWLEDGE_ALERT = "acknowledge_alert"
    SNOOZE_ALERT = "snooze_alert"
    ERASE = "erase"
