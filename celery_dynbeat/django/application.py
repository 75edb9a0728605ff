"""The Dynbeat of a Django project."""

from celery import current_app

from celery_dynbeat.api import Dynbeat


def project_dynbeat() -> Dynbeat | None:
    """Return the Dynbeat of the project's Celery application; None if it is not imported."""
    found = getattr(current_app, "dynbeat", None)
    return found if isinstance(found, Dynbeat) else None
