"""The evaluation of alerts in beat, in separate threads."""

from collections.abc import Sequence

from celery_dynbeat.alerts.messages import Messages
from celery_dynbeat.beat.alerting.alert_pass import AlertPass
from celery_dynbeat.beat.alerting.thread import AlertThread
from celery_dynbeat.process.context import Context

#: Seconds between two looks for messages to send.
MESSAGES_INTERVAL = 5.0


def threads_of(context: Context, *, node: str) -> Sequence[AlertThread]:
    """Return the threads of a beat, not started. Without targets there are no messages."""
    database, clock, settings = context.database, context.clock, context.settings
    evaluation = AlertPass(database=database, clock=clock, settings=settings)
    evaluating = AlertThread(lambda: evaluation.run(rest=evaluating.rest))
    threads = [evaluating]
    if any(settings.alert_urls.values()):
        messages = Messages(database=database, clock=clock, settings=settings, node=node)
        # Not the same thread: a delivery may take dynbeat_alert_timeout.
        sending = AlertThread(
            messages.run_once, name="dynbeat-alert-messages", interval=MESSAGES_INTERVAL
        )
        threads.append(sending)
    return threads
