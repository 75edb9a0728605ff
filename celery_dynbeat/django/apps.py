"""The optional Django app: tables by ``migrate``, and schedules and runs in Django's admin."""

import sys
from contextlib import suppress
from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import NotSupportedError, connections, router
from django.db.models.signals import post_migrate, pre_delete, pre_save

from celery_dynbeat.client import Context
from celery_dynbeat.common.errors import DynbeatError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db import django_databases, schema
from celery_dynbeat.db.names import TableNames
from celery_dynbeat.django.application import project_dynbeat


class DynbeatConfig(AppConfig):
    """Put ``"celery_dynbeat.django"`` into INSTALLED_APPS. It has no migrations of Django."""

    name = "celery_dynbeat.django"
    label = "dynbeat"
    verbose_name = "Dynamic schedules"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let ``migrate`` create the tables, and read them where the settings put them."""
        post_migrate.connect(upgrade_tables, sender=self, dispatch_uid="celery_dynbeat.upgrade")
        checks.register(check_application)
        for model in self.get_models():
            pre_save.connect(refuse, sender=model, dispatch_uid="celery_dynbeat.save")
            pre_delete.connect(refuse, sender=model, dispatch_uid="celery_dynbeat.delete")
        dynbeat = project_dynbeat()
        if dynbeat is None:
            return
        # check_application reports invalid settings.
        with suppress(DynbeatError):
            place_tables(dynbeat.context.settings)


def place_tables(settings: Settings) -> None:
    """Give the models the schema and the prefix of the settings."""
    from celery_dynbeat.django.models import Run, Schedule  # noqa: PLC0415 - apps are not ready

    names = TableNames(settings.schema, settings.table_prefix)
    for model, table in ((Schedule, "schedule"), (Run, "run")):
        parts = [names.schema, names.of(table)] if names.schema else [names.of(table)]
        quote = connections[router.db_for_read(model)].ops.quote_name
        # Django has no schemas. It leaves a name that begins and ends with a quote as it is.
        placed = ".".join(map(quote, parts)) if names.schema else parts[0]
        model._meta.db_table = placed  # noqa: SLF001 - documented as public


def upgrade_tables(using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Create or upgrade the tables in the database ``using``, if the schedules are there.

    A receiver of ``post_migrate``. With a URL other than ``django://ALIAS`` it does nothing.
    """
    dynbeat = project_dynbeat()
    if dynbeat is None:
        return
    settings = dynbeat.context.settings
    if django_databases.alias_of(settings.database_url) != using or settings.create_tables is False:
        return
    if not router.allow_migrate(using, DynbeatConfig.label):
        return
    if schema.upgrade(dynbeat.context.database) and verbosity:
        print(f"  Upgraded the tables of schedules to {schema.head()}", file=stdout or sys.stdout)


def refuse(sender: Any, **_: Any) -> None:
    """Raise NotSupportedError: a row that Django saves lacks the columns that the model lacks."""
    raise NotSupportedError(
        f"{sender.__name__} is read-only in Django: change schedules with the API of Dynbeat; leave"
        " them out of fixtures with `--exclude dynbeat` of dumpdata and loaddata"
    )


def check_application(**_: Any) -> list[checks.CheckMessage]:
    """Return the errors of the dynbeat_* settings and of their database URL.

    Return a warning without a Dynbeat or its current_session. Nothing connects.
    """
    dynbeat = project_dynbeat()
    if dynbeat is None:
        hint = "create Dynbeat(app) in the module of the Celery application, and import that"
        hint += " module in the project's __init__.py"
        return [checks.Warning("no Celery application with Dynbeat", hint=hint, id="dynbeat.W001")]
    try:
        _check_url(dynbeat.context)
    except DynbeatError as error:
        return [checks.Error(str(error), id="dynbeat.E001")]
    return _unjoined(dynbeat.context)


def _unjoined(context: Context) -> list[checks.CheckMessage]:
    """Return a warning if calls do not join Django's transactions in the same database."""
    is_of_django = django_databases.alias_of(context.settings.database_url) is not None
    if not is_of_django or context.current_session is not None:
        return []
    text = "calls of dynbeat do not join transaction.atomic(); on SQLite they wait for its lock"
    hint = "write Dynbeat(app, current_session=celery_dynbeat.django.current_session)"
    return [checks.Warning(text, hint=hint, id="dynbeat.W002")]


def _check_url(context: Context) -> None:
    """Raise ConfigurationError for invalid settings, or a database that cannot be found."""
    alias = django_databases.alias_of(context.settings.database_url)
    is_shared = context.shared_engine is not None
    # Django's test runner checks, too. There the alias may be the real database: do not use it.
    if is_shared or alias is None or not django_databases.place_of(alias).is_tested:
        context.database.engine  # noqa: B018 - checks the URL and the driver
