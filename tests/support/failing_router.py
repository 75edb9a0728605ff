"""A router of an application, for ``task_routes`` of the process tests."""

import os
from pathlib import Path
from typing import Any

#: Names a file; while that is there, the router raises.
ROUTER_VARIABLE = "DYNBEAT_TEST_ROUTER_RAISES"


def raising(name: str, *_args: Any, **_options: Any) -> None:
    """Leave the route to the configuration, or raise."""
    if Path(os.environ[ROUTER_VARIABLE]).exists():
        raise LookupError(f"no region for {name}")
