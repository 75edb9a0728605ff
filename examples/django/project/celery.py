"""The Celery application of the project."""

import os

from celery import Celery

from celery_dynbeat import Dynbeat
from celery_dynbeat.django import current_session

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
app = Celery("project")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
dynbeat = Dynbeat(app, current_session=current_session)
