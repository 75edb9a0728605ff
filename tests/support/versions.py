"""What tests need of Celery. The lanes of noxfile.py run them on older versions."""

import celery
import pytest


def needs_celery(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips the test on an older Celery, which lacks ``what``."""
    # Some versions have a suffix, such as rc1, after the numbers that are compared.
    numbers = celery.__version__.split(".")[:2]
    installed = tuple(int("".join(filter(str.isdigit, number))) for number in numbers)
    reason = f"Celery {major}.{minor} is the first with {what}"
    return pytest.mark.skipif(installed < (major, minor), reason=reason)
