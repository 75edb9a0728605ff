"""A publisher for tests."""

from collections.abc import Sequence

from celery_dynbeat.broker.publisher import PublishResult
from celery_dynbeat.planning.outgoing_run import OutgoingRun


class RecordingPublisher:
    """Keeps in ``sent``, in order, the runs that a broker would have received.

    ``terminated`` are the ids of the runs that workers would have been asked to end.
    """

    def __init__(self) -> None:
        self.sent: list[OutgoingRun] = []
        self.terminated: list[str] = []
        self._failure: Exception | None = None

    def fail_with(self, error: Exception | None) -> None:
        """Raise ``error`` at each later use, as if the broker were away; None ends this."""
        self._failure = error

    def connect(self) -> None:
        """Raise the error of ``fail_with``, if there is one."""
        if self._failure is not None:
            raise self._failure

    def publish(self, batch: Sequence[OutgoingRun]) -> PublishResult:
        """Keep the batch."""
        self.connect()
        self.sent += batch
        return PublishResult(sent=[run.run_id for run in batch])

    def outage_delay(self) -> None:
        """Return None: nothing is held back."""

    def terminate(self, run_ids: Sequence[str]) -> None:
        """Keep the ids."""
        self.connect()
        self.terminated += run_ids
