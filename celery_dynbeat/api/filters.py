"""The filters of lists, counts and cancellations, as keyword arguments.

A call takes ``**matching: Unpack[RunFilter]``: an editor shows the keywords, and mypy and pyright
reject others. ``Calls`` rejects them at run time.
"""

from collections.abc import Collection
from datetime import datetime
from typing import TypeAlias, TypedDict

#: A status, or several: ``"failed"``, ``("failed", "lost")``.
StatusFilter: TypeAlias = str | Collection[str]


class OwnerFilter(TypedDict, total=False):
    """The filter of calls that can be limited only to an owner."""

    owner: str | None


class ScheduleFilter(TypedDict, total=False):
    """The filter of a list of schedules. A key that is omitted or None matches any value.

    - ``owner``: the schedules of this owner. The calls of one owner accept only that owner.
    - ``owner_prefix``: the beginning of the owner, case-sensitive, such as ``"org:7/"``. The calls
      of one owner do not accept it.
    - ``task``: the exact name of a task.
    - ``tag``: one tag.
    - ``enabled``: False matches paused schedules.
    - ``state``: ``"active"``, ``"paused"``, ``"finished"``, ``"quarantined"``, ``"held"``,
      ``"overdue"`` or ``"failing"``.
    - ``name_prefix``: the beginning of the name, case-sensitive.
    """

    owner: str | None
    owner_prefix: str | None
    task: str | None
    enabled: bool | None
    tag: str | None
    state: str | None
    name_prefix: str | None


class RunFilter(TypedDict, total=False):
    """The filter of runs. A key that is omitted or None matches any value.

    - ``owner``: the runs of this owner. The calls of one owner accept only that owner.
    - ``status``: one status, or several.
    - ``task``: the exact name of a task.
    - ``origin``: the origin, such as ``"manual"``.
    - ``batch_id``: the runs of this batch.
    - ``since``, ``until``: aware datetimes, with since <= fire time < until.
    """

    owner: str | None
    status: StatusFilter | None
    task: str | None
    origin: str | None
    batch_id: str | None
    since: datetime | None
    until: datetime | None


class ChangeFilter(TypedDict, total=False):
    """The filter of changes. A key that is omitted or None matches any value.

    - ``owner``: the edits of this owner. The calls of one owner accept only that owner.
    - ``actor``: the exact name of an actor.
    - ``action``: the action, such as ``"pause"``.
    - ``since``, ``until``: aware datetimes, with since <= time of the edit < until.
    """

    owner: str | None
    actor: str | None
    action: str | None
    since: datetime | None
    until: datetime | None
