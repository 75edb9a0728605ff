"""A publisher for tests."""

from collections.abc import Sequence

from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.planning.plan import OutgoingRun


class RecordingPublisher:
    """A publisher that appends the runs that a broker would receive to ``sent``.

    ``terminated`` contains the ids of the runs that beat asks the workers to terminate.
    """

    def __init__(self) -> None:
        self.sent: list[OutgoingRun] = []
        self.terminated: list[str] = []
        self._failure: Exception | None = None

    def fail_with(self, error: Exception | None) -> None:
        """Raise ``error`` on each later use, like an unreachable broker. None raises no error."""
        self._failure = error

    def connect(self) -> None:
        """Raise the error set by ``fail_with``, if any."""
        if self._failure is not None:
            raise self._failure

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Append the batch to ``sent``."""
        self.connect()
        self.sent += batch
        return PublishResult(sent=[run.run_id for run in batch])

    def outage_delay(self) -> None:
        """Return None, because no run is held back."""

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Append the ids to ``terminated``."""
        self.connect()
        self.terminated += run_ids
