"""Hide command-line plugins that are not part of the measurement.

Python imports this module from the PYTHONPATH of the processes. Celery's command line imports each
distribution that registers a command: this project and Flower, also for a stock beat. With this
module it finds only the distributions in ``DYNBEAT_BENCHMARK_PLUGINS``.
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
