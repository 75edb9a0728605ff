"""Load the Celery application with Django, so that ``shared_task`` finds it."""

from project.celery import app as celery_app

__all__ = ["celery_app"]
