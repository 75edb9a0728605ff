"""The API in a Django project.

from celery_dynbeat import Dynbeat
from celery_dynbeat.django import current_session

dynbeat = Dynbeat(app, current_session=current_session)

Inside ``transaction.atomic()``, each call joins Django's transaction.
"""

try:
    from celery_dynbeat.django.deleting import delete_schedules_with
    from celery_dynbeat.django.sessions import current_session
except ModuleNotFoundError as error:
    # Only Django itself: an error in the project's own imports is the project's.
    if error.name != "django":
        raise
    raise ImportError(
        f"celery_dynbeat.django needs Django ({error}): pip install 'celery-dynbeat[django]'"
    ) from error

__all__ = ["current_session", "delete_schedules_with"]
