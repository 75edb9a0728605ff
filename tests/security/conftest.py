"""The applications of the contract tests, and the installations of the process tests."""

from tests.acceptance.conftest import (  # noqa: F401 - fixtures
    broker_file_url,
    file_site,
    site_folder,
)
from tests.contract.conftest import beat, clock, dynbeat, limited, mine, sent  # noqa: F401
