"""Load only the Celery command-line plug-ins of the measured distributions.

Python imports this module at start, from the PYTHONPATH of the measured processes. Celery's command
line imports every plug-in that is installed: our commands and Flower, even for a stock beat. This
module hides the plug-ins of distributions that ``DYNBEAT_BENCHMARK_PLUGINS`` does not name.
"""

import os
from importlib import metadata
from typing import Any

GROUP = "celery.commands"

_original: Any = metadata.entry_points
_measured = os.environ["DYNBEAT_BENCHMARK_PLUGINS"].split()


def _entry_points(**selected: Any) -> metadata.EntryPoints:
    entries: metadata.EntryPoints = _original(**selected)
    if selected.get("group") != GROUP:
        return entries
    select_parts: Any = (entry for entry in entries if entry.dist and entry.dist.name in _measured)
    return metadata.EntryPoints(select_parts)


metadata.entry_points = _entry_points  # type: ignore[assignment]
