"""The call that forecasts how many runs come due."""

from datetime import datetime, timedelta
from typing import Unpack

from celery_dynbeat.api import checks
from celery_dynbeat.api.calls import Calls
from celery_dynbeat.api.filters import OwnerFilter
from celery_dynbeat.api.results import ForecastInfo


class ForecastCalls(Calls):
    """The call that forecasts runs."""

    def forecast(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        per: str = "minute",
        queue: str | None = None,
        **matching: Unpack[OwnerFilter],
    ) -> ForecastInfo:
        """Return how many runs become due in each minute or hour, by queue, including recurrences.

        - ``since`` is now by default, and cannot be earlier. ``until`` is an hour later by default.
          The forecast covers whole minutes or hours, at most 1,440.
        - ``per`` is ``"minute"`` or ``"hour"``. ``queue`` selects one queue, and ``owner`` the
          schedules of one owner.

        ``skip()``, ``end_at``, ``max_runs``, windows and quiet hours are taken into account. Paused
        schedules have no runs. Held schedules are counted at their fire times. Retries, reruns and
        manual runs cannot be foreseen. The recurrences of the first 1,000 schedules are counted,
        and the next run of the first 50,000. ``is_at_least`` says if there are more. The call
        imports the tasks of the application, because their options determine the queue.

        Raises InvalidScheduleError.

        >>> found = mine.forecast(until=datetime(2026, 1, 6, 9, 30, tzinfo=UTC), per="hour")
        >>> [(str(row.start_at), row.queue, row.runs) for row in found.rows]
        [('2026-01-06 09:00:00+00:00', 'celery', 1)]
        """
        given = self._in_scope(OwnerFilter, matching)
        checks.check_one_of("per", per, "minute", "hour")
        if queue is not None:
            checks.check_name("queue", queue)
        now = self._now()
        first = max(checks.check_instant("since", since) or now, now)
        last = checks.check_instant("until", until) or first + timedelta(hours=1)
        # A late import: few callers forecast, and a forecast needs much of beat.
        from celery_dynbeat.api.lists import forecast  # noqa: PLC0415

        return forecast.forecast(
            self._context,
            bins=forecast.whole_bins(first, last, per),
            per=per,
            queue=queue,
            owner=given["owner"],
            now=now,
            session=self._session,
        )
