"""The public API has the documented types."""

import sys
from pathlib import Path

import pytest
from mypy import api


def test_the_public_api_type_checks_as_an_application_uses_it(
    pytestconfig: pytest.Config,
) -> None:
    config = Path(__file__).parents[2] / "pyproject.toml"
    file = Path(__file__).with_name("public_api.py")

    # mypy takes 15 s with an empty cache and 2 s with that of the last run.
    cache = pytestconfig.cache.mkdir("mypy")

    # mypy raises the recursion limit of this process, on which other tests depend.
    limit = sys.getrecursionlimit()
    try:
        report, errors, status = api.run(
            ["--strict", f"--config-file={config}", f"--cache-dir={cache}", str(file)],
        )
    finally:
        sys.setrecursionlimit(limit)

    assert (status, errors) == (0, ""), report
