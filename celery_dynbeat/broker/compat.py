"""Replacements for features that older versions of Celery and kombu lack.

Each item names the version that has it. Delete the item when that version is the lower bound in
``pyproject.toml``. ``docs/reference/compatibility.md`` says what differs for the user.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from celery import Celery
from kombu import Producer, exceptions

try:
    # Celery 5.5
    from celery.utils.quorum_queues import detect_quorum_queues
except ModuleNotFoundError:

    def detect_quorum_queues(app: Celery, driver_type: str) -> tuple[bool, str]:
        """Return that RabbitMQ delays no message: older workers declare no delay queues."""
        del app, driver_type
        return False, ""


__all__ = [
    "BatchPublishError",
    "detect_quorum_queues",
    "pipeline_of",
    "publish_batch",
]

#: kombu 5.7. If there are no batches, no operation raises it.
BatchPublishError: type[Exception] = getattr(
    exceptions, "BatchPublishError", type("BatchPublishError", (exceptions.KombuError,), {})
)

if hasattr(Producer, "batch"):

    def publish_batch(producer: Producer) -> AbstractContextManager[Any]:
        """Return a context whose publishes are sent in pipelines, where the transport has them."""
        batch: AbstractContextManager[Any] = producer.batch()
        return batch

else:

    def publish_batch(producer: Producer) -> AbstractContextManager[Any]:
        """Return a context whose publishes are sent one by one. kombu 5.7 has batches.

        In kombu 5.7 it is the same for transports without pipelines.
        """
        del producer
        return nullcontext()


def pipeline_of(batch: Any) -> Any | None:
    """Return the redis-py pipeline of the batch with a message, or None without a pipeline."""
    session = getattr(getattr(batch, "state", None), "session", None)
    pipeline = getattr(session, "pipeline", None)
    return pipeline if hasattr(pipeline, "command_stack") else None
