"""The optional Django app: schedules and runs in Django's admin."""

from django.apps import AppConfig


class DynbeatConfig(AppConfig):
    """Put ``"celery_dynbeat.django"`` into INSTALLED_APPS. It has no migrations."""

    name = "celery_dynbeat.django"
    label = "dynbeat"
    verbose_name = "Dynamic schedules"
    default_auto_field = "django.db.models.BigAutoField"
