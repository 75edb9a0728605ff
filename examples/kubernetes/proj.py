"""The Celery application of the manifests. Replace it by your own."""

import os

from celery import Celery

from celery_dynbeat import Dynbeat

app = Celery("proj", broker=os.environ["BROKER_URL"])
app.conf.update(
    beat_scheduler="dynbeat",
    dynbeat_database_url=os.environ["DATABASE_URL"],
    # The kubelet and Prometheus connect to the address of the pod.
    dynbeat_metrics="0.0.0.0:9808",
    dynbeat_expected_nodes={"beat": 2},
)
dynbeat = Dynbeat(app)


@app.task(name="mail.reminder", acks_late=True)
def reminder(user_id: int) -> None:
    """Stand for a task of your application."""
    print("reminder for", user_id)
