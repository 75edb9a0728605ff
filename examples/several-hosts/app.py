"""The application of all hosts: beats, workers, API servers, Flower, and the program that checks.

Each host has the same environment: ``DATABASE_URL`` names all database servers, ``BROKER_URL`` all
brokers.
"""

import json
import os
from pathlib import Path

from celery import Celery

from celery_dynbeat import Dynbeat, current_run

#: Each start of the task, as lines of JSON. It is independent of the tables.
STARTS = Path(os.environ.get("STARTS", "starts.jsonl"))

app = Celery("several_hosts")
app.conf.update(
    broker_url=os.environ["BROKER_URL"],
    broker_connection_retry_on_startup=True,
    # Seconds for each broker of the list that does not answer. The default is 4.
    broker_connection_timeout=2,
    # A broker that was cut off is noticed after two intervals. The default is 120.
    broker_heartbeat=10,
    # Workers publish retries, and runs that they defer: a broker that dies must not lose them.
    broker_transport_options={"confirm_publish": True},
    # A quorum queue is on three nodes: two confirm each message. It needs a topic exchange.
    task_default_queue_type="quorum",
    task_default_exchange_type="topic",
    # The message of a dead worker goes to another one.
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    worker_prefetch_multiplier=4,
    worker_hijack_root_logger=False,
    beat_scheduler="dynbeat",
    dynbeat_database_url=os.environ["DATABASE_URL"],
    dynbeat_engine_options={
        "pool_size": 5,
        # Seconds. A database server that was cut off does not answer: give up, and find the new
        # primary. The defaults are 10 and 30.
        "connect_args": {"connect_timeout": 2, "read_timeout": 10, "tcp_user_timeout": 10_000},
    },
    dynbeat_catch_up="all",
    # A beat that died between the commit and the publish: another one sends its runs after this.
    dynbeat_dispatch_timeout=10,
    # A message that the broker lost is sent again after this.
    dynbeat_resend_after=60,
    dynbeat_node_timeout=30,
    dynbeat_expected_nodes={"beat": 2, "worker": 2},
    # Prometheus is on another host.
    dynbeat_metrics="0.0.0.0:9808",
)
dynbeat = Dynbeat(app)


@app.task(name="remind")
def remind() -> None:
    """Note the start of the run. A start without a run is an error that the account shows."""
    run = current_run()
    line = {
        "schedule": run and run.schedule,
        "fire_time": run and run.fire_at.isoformat(),
        "run": run and run.run_id,
        "attempt": run and run.attempt,
    }
    with STARTS.open("a") as file:
        # One write at the end of the file: lines of several processes do not mix.
        file.write(json.dumps(line) + "\n")
