"""Stores that the other schedulers write themselves, each in its own process.

A store is a script that reads JSON from stdin: a list of calls. Django allows one configuration per
process, and the models of the packages emit warnings, which are errors in the tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent
REPOSITORY = FOLDER.parents[2]
WRITTEN_WITHIN = 60


def require(package: str) -> None:
    """Skip the test if the package is not installed; fail it with ``CI`` set."""
    try:
        version(package)
    except PackageNotFoundError:
        if os.environ.get("CI"):
            pytest.fail(f"{package} is not installed")
        pytest.skip(f"{package} is not installed: make venv")


def write_store(package: str, rows: Sequence[Mapping[str, Any]], *arguments: str) -> None:
    """Write the rows with the models of ``package``. ``arguments`` name the store."""
    require({"redbeat": "celery-redbeat"}.get(package, package))
    script = f"tests.support.peers.{package.replace('-', '_')}_store"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", script, *arguments],
        input=json.dumps(rows),
        capture_output=True,
        text=True,
        timeout=WRITTEN_WITHIN,
        cwd=REPOSITORY,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
