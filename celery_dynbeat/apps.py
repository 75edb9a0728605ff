"""Let ``"celery_dynbeat"`` in INSTALLED_APPS be the app ``"celery_dynbeat.django"``."""

from celery_dynbeat.django.apps import DynbeatConfig

__all__ = ["DynbeatConfig"]
