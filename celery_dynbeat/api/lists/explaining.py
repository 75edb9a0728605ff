"""The call that explains why a schedule ran, or did not run."""

from datetime import datetime
from typing import Unpack

from kombu.utils.imports import symbol_by_name

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.filters import OwnerFilter
from celery_dynbeat.api.results.explanation import Explanation

# A name: an explanation reads the health of the installation, which uses the API.
_EXPLAIN = "celery_dynbeat.insights.explain.collect:explain"


class ExplainCalls(Calls):
    """The call that explains a schedule."""

    def explain(
        self,
        name: str,
        *,
        at: datetime | None = None,
        count: int = 5,
        **matching: Unpack[OwnerFilter],
    ) -> Explanation:
        """Return why the schedule ran or did not run, as ``dynbeat explain`` prints it.

        - ``at`` asks about the fire time in the minute that begins with this instant. The answer
          comes from the history and the audit. None asks about the present.
        - ``count`` is the number of last runs and of next fire times, at most 100.
        - ``owner`` is required in the calls across owners.

        The call imports the tasks of the application, because their options determine the queue.
        Raises ScheduleNotFoundError and InvalidScheduleError.

        >>> found = mine.explain("digest")
        >>> found.cause
        'no_beat'
        """
        owner = self._in_scope(OwnerFilter, matching)["owner"]
        if owner is None:
            raise checks.invalid("owner", owner, "must be the owner of the schedule")
        checks.check_name("name", name)
        checks.check_integer("count", count, minimum=1, maximum=100)
        explanation: Explanation = symbol_by_name(_EXPLAIN)(
            self._context,
            owner=owner,
            name=name,
            at=checks.check_instant("at", at),
            run_count=count,
            count=count,
            session=self._session,
        )
        return explanation
