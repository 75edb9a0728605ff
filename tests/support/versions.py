"""What tests need of Celery and SQLAlchemy. The lanes of noxfile.py run them on older versions."""

import celery
import pytest
import sqlalchemy


def needs_celery(major: int, minor: int, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips the test on an older Celery, which lacks ``what``."""
    return _needs("Celery", celery.__version__, (major, minor), what)


def needs_sqlalchemy(major: int, minor: int, patch: int, what: str) -> pytest.MarkDecorator:
    """Return a mark that skips the test on an older SQLAlchemy, which lacks ``what``."""
    return _needs("SQLAlchemy", sqlalchemy.__version__, (major, minor, patch), what)


def _needs(name: str, version: str, first: tuple[int, ...], what: str) -> pytest.MarkDecorator:
    # Some versions have a suffix, such as rc1, after the numbers that are compared.
    numbers = version.split(".")[: len(first)]
    installed = tuple(int("".join(filter(str.isdigit, number))) for number in numbers)
    text = ".".join(map(str, first))
    return pytest.mark.skipif(first > installed, reason=f"{name} {text} is the first with {what}")
