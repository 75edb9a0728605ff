"""The attributes of spans: the messaging conventions of OpenTelemetry, and ``dynbeat.*``."""

from celery_dynbeat.planning.plan import OutgoingRun

Attributes = dict[str, str | int]
#: The names of the conventions, by the driver type of kombu.
_SYSTEMS = {"amqp": "rabbitmq", "sqs": "aws_sqs", "gcpubsub": "gcp_pubsub"}


def run_attributes(run: OutgoingRun) -> Attributes:
    """Return what identifies a run."""
    return {
        "messaging.message.id": run.run_id,
        "celery.task_name": run.task,
        "dynbeat.run_id": run.run_id,
        "dynbeat.schedule": run.name,
        "dynbeat.owner": run.owner,
        "dynbeat.scheduled_for": run.scheduled_for.isoformat(),
        "dynbeat.origin": str(run.origin),
        "dynbeat.attempt": run.attempt + 1,
    }


def message_attributes(run: OutgoingRun, *, queue: str | None, system: str) -> Attributes:
    """Return the attributes of the span that sends the message of a run."""
    destination: Attributes = {} if queue is None else {"messaging.destination.name": queue}
    return {
        **run_attributes(run),
        **destination,
        "messaging.system": _SYSTEMS.get(system, system),
        "messaging.operation.name": "publish",
        "messaging.operation.type": "send",
    }


def outcome_attributes(
    run_id: str, *, status: str, attempt: int | None, error: str | None
) -> Attributes:
    """Return the attributes of an outcome.

    Only the type of an error is recorded, because its text may contain data.
    """
    attributes: Attributes = {
        "messaging.message.id": run_id,
        "dynbeat.run_id": run_id,
        "dynbeat.status": str(status),
    }
    if attempt is not None:
        attributes["dynbeat.attempt"] = attempt
    error_type = (error or "").partition(":")[0]
    if status == "failed" and error_type.isidentifier():
        attributes["error.type"] = error_type
    return attributes
