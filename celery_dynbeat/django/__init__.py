"""The API inside Django's transactions.

from celery_dynbeat.django import session

with transaction.atomic(), session() as joined:
    report = Report.objects.create(user=request.user)
    mine.create("report", task="reports.send", trigger="0 9 * * mon-fri", session=joined)
"""

from celery_dynbeat.django.sessions import session
from celery_dynbeat.django.urls import database_url

__all__ = ["database_url", "session"]
