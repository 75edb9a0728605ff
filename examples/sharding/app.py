"""Two shards: each has its own Celery application, database, broker, beats, workers and Flower.

    celery -A app:shard_0 worker
    celery -A app:shard_0 beat
    celery -A app:shard_0 dynbeat flower      (and the same for app:shard_1)

``dynbeat_for(owner)`` routes an owner. All schedules of an owner are in one shard.
"""

import hashlib
import os

from celery import Celery, shared_task

from celery_dynbeat import Dynbeat

FOLDER = os.environ.get("SHARDS_FOLDER", ".")


def _make_shard(name: str) -> Dynbeat:
    # Not the current application: tasks must be called through the application of their shard.
    app = Celery(name, set_as_current=False)
    app.conf.update(
        # A worker must not receive runs of the other database: the guard drops a message whose run
        # it does not find. With a common broker, set different values of task_default_queue.
        broker_url=f"sqla+sqlite:///{FOLDER}/{name}-broker.sqlite3",
        broker_connection_retry_on_startup=True,
        beat_scheduler="dynbeat",
        dynbeat_database_url=f"sqlite:///{FOLDER}/{name}.sqlite3",
    )
    return Dynbeat(app)


SHARDS = {name: _make_shard(name) for name in ("shard_0", "shard_1")}
#: The names for -A.
shard_0, shard_1 = (shard.app for shard in SHARDS.values())

#: The shard of each of 256 buckets of owners. A third shard takes over buckets, and the owners in
#: them move. With ``% len(SHARDS)`` most owners would have to move.
PLACEMENT = ["shard_0"] * 128 + ["shard_1"] * 128
#: The shards of owners that were moved alone. Other owners of their buckets stay.
MOVED: dict[str, str] = {}


def dynbeat_for(owner: str) -> Dynbeat:
    """Return the Dynbeat of the owner's shard, the same one in each process."""
    # Not hash(): Python hashes texts differently in each process.
    bucket = hashlib.sha256(owner.encode()).digest()[0]
    return SHARDS[MOVED.get(owner, PLACEMENT[bucket])]


@shared_task(name="remind")
def remind(user: str) -> str:
    """Pretend to send a reminder. Each application has this task."""
    return f"reminder for {user}"
