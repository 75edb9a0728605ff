"""The Dynbeat of a Django project."""

from celery import current_app

# There is no public list of the applications.
from celery._state import _get_active_apps
from django.core.exceptions import ImproperlyConfigured

from celery_dynbeat.api import Dynbeat


def project_dynbeat() -> Dynbeat | None:
    """Return the Dynbeat of the project's Celery application; None if it is not imported."""
    made = [getattr(app, "dynbeat", None) for app in _get_active_apps()]
    found = [each for each in made if isinstance(each, Dynbeat)]
    # Celery's current application is that of the main thread. Other threads serve requests.
    current = getattr(current_app, "dynbeat", None) if len(found) > 1 else None
    return current if isinstance(current, Dynbeat) else next(iter(found), None)


def required_dynbeat() -> Dynbeat:
    """Return the Dynbeat of the project. Raises ImproperlyConfigured if it is not imported."""
    found = project_dynbeat()
    if found is None:
        raise ImproperlyConfigured(
            "the Dynbeat of the Celery application is missing: import the application in the"
            " __init__.py of the project"
        )
    return found
