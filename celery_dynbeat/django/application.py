"""The Dynbeat of a Django project."""

from celery import current_app
from django.core.exceptions import ImproperlyConfigured

from celery_dynbeat.api import Dynbeat


def project_dynbeat() -> Dynbeat | None:
    """Return the Dynbeat of the project's Celery application; None if it is not imported."""
    found = getattr(current_app, "dynbeat", None)
    return found if isinstance(found, Dynbeat) else None


def required_dynbeat() -> Dynbeat:
    """Return the Dynbeat of the project. Raises ImproperlyConfigured if it is not imported."""
    found = project_dynbeat()
    if found is None:
        raise ImproperlyConfigured(
            "the Dynbeat of the Celery application is missing: import the application in the"
            " __init__.py of the project"
        )
    return found
