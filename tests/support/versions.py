"""What tests need of Celery. The lanes of noxfile.py run them on older versions."""

import celery
import pytest

_CELERY = tuple(int(part) for part in celery.__version__.split(".")[:2])


def needs_celery(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips the test on an older Celery, which lacks ``what``."""
    return pytest.mark.skipif(
        (major, minor) > _CELERY, reason=f"Celery {major}.{minor} is the first with {what}"
    )
