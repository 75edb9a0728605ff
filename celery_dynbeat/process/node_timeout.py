"""How long a node may be silent before it counts as dead."""

from datetime import timedelta

from celery_dynbeat.common.clock import RESYNC_INTERVAL, Clock
from celery_dynbeat.common.settings import Settings

#: Longer than any node has been silent.
NEVER = timedelta(days=36_500)


def effective_node_timeout(clock: Clock, settings: Settings) -> timedelta:
    """Return how long a node may be silent before it counts as dead.

    Usually this is dynbeat_node_timeout. After a step of the database's clock all nodes seem to
    have been silent, and NEVER is returned. Each node reads the clock again within
    RESYNC_INTERVAL and then writes a heartbeat.
    """
    timeout = settings.node_timeout
    return timeout if clock.steady_for() > RESYNC_INTERVAL + timeout else NEVER
