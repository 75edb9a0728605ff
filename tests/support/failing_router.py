"""A task router for ``task_routes`` of the process tests."""

import os
from pathlib import Path
from typing import Any

#: The path of a file. While the file exists, the router raises.
ROUTER_VARIABLE = "DYNBEAT_TEST_ROUTER_RAISES"


def raising(name: str, *_args: Any, **_options: Any) -> None:
    """Return no route, or raise LookupError."""
    if Path(os.environ[ROUTER_VARIABLE]).exists():
        raise LookupError(f"no region for {name}")
