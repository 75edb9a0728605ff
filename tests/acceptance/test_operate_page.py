"""docs/how-to/troubleshooting.md: the commands of the incident print what the page shows."""

import subprocess
import sys
from pathlib import Path

import pytest

RECORD = Path(__file__).parents[2] / "examples" / "incident" / "record.py"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_incident_prints_what_the_page_shows():
    ended = subprocess.run(
        [sys.executable, RECORD, "--check"], capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
