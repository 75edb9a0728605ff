"""The number of schedules in each state."""

from collections.abc import Mapping

from sqlalchemy.orm import Session

from celery_dynbeat.api.lists import queries
from celery_dynbeat.api.results import BoundedCount
from celery_dynbeat.common.states import State
from celery_dynbeat.process.context import Context

#: The key of the number of schedules in any state.
ANY = ""
#: Schedules that are read for a number whose condition no index covers: their rows can lie on as
#: many pages of the table.
MAX_UNCOVERED = 2_000
#: If there is no filter, an index alone counts the schedules in these states.
_COVERED = (None, State.ACTIVE)


def state_counts(
    context: Context,
    *,
    owner: str | None = None,
    owner_prefix: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    name_prefix: str | None = None,
    text: str | None = None,
    session: Session | None = None,
) -> Mapping[str, BoundedCount]:
    """Return the number of schedules in each state, and in any state with the key ``""``.

    A number is exact if at most 2,000 schedules are read for it. If there is no filter, the numbers
    of all schedules and of active schedules are exact up to 10,000. Raises InvalidScheduleError for
    an invalid filter.
    """
    is_filtered = any(
        each is not None for each in (owner, owner_prefix, task, tag, name_prefix, text)
    )

    def work(session: Session) -> Mapping[str, BoundedCount]:
        return {
            str(state or ANY): queries.count(
                context,
                session,
                matching=queries.filter_of(
                    context,
                    owner=owner,
                    owner_prefix=owner_prefix,
                    task=task,
                    tag=tag,
                    name_prefix=name_prefix,
                    text=text,
                    state=state,
                ),
                limit=MAX_UNCOVERED if is_filtered or state not in _COVERED else None,
            )
            for state in (None, *State)
        }

    return context.read_many(session, work)
