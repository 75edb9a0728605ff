"""``celery`` as it is where nothing is installed but what is measured.

Python imports this by itself, from the PYTHONPATH of the processes. Celery's command line imports
whatever registers a command with it: our own tables and Flower, also for a stock beat. Here it
finds the commands of those distributions only that ``DYNBEAT_BENCHMARK_PLUGINS`` names.
"""

import os
from importlib import metadata
from typing import Any

GROUP = "celery.commands"

_all: Any = metadata.entry_points
_wanted = os.environ["DYNBEAT_BENCHMARK_PLUGINS"].split()


def _entry_points(**selected: Any) -> metadata.EntryPoints:
    found: metadata.EntryPoints = _all(**selected)
    if selected.get("group") != GROUP:
        return found
    chosen: Any = (entry for entry in found if entry.dist and entry.dist.name in _wanted)
    return metadata.EntryPoints(chosen)


metadata.entry_points = _entry_points  # type: ignore[assignment]
