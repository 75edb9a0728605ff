"""The API in a Django project.

from celery_dynbeat import Dynbeat
from celery_dynbeat.django import current_session

dynbeat = Dynbeat(app, current_session=current_session)

Inside ``transaction.atomic()``, each call joins Django's transaction.
"""

from celery_dynbeat.django.sessions import current_session, session
from celery_dynbeat.django.urls import database_url, url_of

__all__ = ["current_session", "database_url", "session", "url_of"]
