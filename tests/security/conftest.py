"""The fixtures of the contract tests and of the acceptance tests."""

from tests.acceptance.conftest import (  # noqa: F401 - fixtures
    broker_file_url,
    file_site,
    site_folder,
)
from tests.contract.conftest import beat, clock, dynbeat, limited, mine, sent  # noqa: F401
