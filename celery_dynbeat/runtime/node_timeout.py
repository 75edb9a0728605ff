"""How long a node may be silent before it counts as gone."""

from datetime import timedelta

from celery_dynbeat.common.clock import RESYNC_EVERY, Clock
from celery_dynbeat.common.settings import Settings

AGES = timedelta(days=36_500)


def longest_silence(clock: Clock, settings: Settings) -> timedelta:
    """Return for how long a node may be silent before it counts as gone.

    That is dynbeat_node_timeout; but AGES after the database's clock was set, when all nodes seem
    to have been silent. Each of them reads it anew within RESYNC_EVERY, and then says that it
    lives.
    """
    timeout = settings.node_timeout
    return timeout if clock.steady_for() > RESYNC_EVERY + timeout else AGES
