"""The optional Django app: tables by ``migrate``, and schedules and runs in Django's admin."""

import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

from celery.app.defaults import DEFAULTS
from django.apps import AppConfig, apps
from django.conf import settings as django_settings
from django.core import checks
from django.db import DEFAULT_DB_ALIAS, NotSupportedError, connections, router
from django.db.models.signals import post_migrate, pre_delete, pre_save
from django.utils.translation import gettext_lazy
from sqlalchemy.exc import SQLAlchemyError

from celery_dynbeat.common.errors import DynbeatError, SchemaError
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.db import TableNames, alias_of, django_databases, schema
from celery_dynbeat.django.application import project_dynbeat
from celery_dynbeat.django.sessions import current_session
from celery_dynbeat.process.context import Context

#: The name of the entry point, and the same scheduler as a path.
ALIAS_OF_SCHEDULER, SCHEDULER = "dynbeat", "celery_dynbeat:DatabaseScheduler"


class DynbeatConfig(AppConfig):
    """Put ``"celery_dynbeat.django"`` into INSTALLED_APPS."""

    name = "celery_dynbeat.django"
    label = "dynbeat"
    verbose_name = gettext_lazy("Dynamic schedules")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Let ``migrate`` upgrade the tables, and read them where the settings put them."""
        post_migrate.connect(upgrade_tables, sender=self, dispatch_uid="celery_dynbeat.upgrade")
        checks.register(check_application)
        checks.register(check_relations, checks.Tags.models)
        checks.register(check_tenants)
        checks.register(check_tables, checks.Tags.database)
        for model in self.get_models():
            pre_save.connect(refuse, sender=model, dispatch_uid="celery_dynbeat.save")
            pre_delete.connect(refuse, sender=model, dispatch_uid="celery_dynbeat.delete")
        dynbeat = project_dynbeat()
        if dynbeat is None:
            return
        conf = dynbeat.app.conf
        if conf.beat_scheduler == ALIAS_OF_SCHEDULER and apps.is_installed("django_celery_beat"):
            # Its admin imports the name of the setting, and the alias is no module.
            conf.beat_scheduler = SCHEDULER
        # check_application reports invalid settings.
        with suppress(DynbeatError):
            place_tables(dynbeat.context.settings)


def place_tables(settings: Settings) -> None:
    """Give the models the schema and the prefix of the settings."""
    from celery_dynbeat.django.models import Run, Schedule  # noqa: PLC0415 - apps are not ready

    names = TableNames(settings.schema, settings.table_prefix)
    tables = {Schedule: "schedule", Run: "run"}
    # With the proxies of a project.
    for model in apps.get_models():
        meta = model._meta  # noqa: SLF001 - documented as public
        table = tables.get(meta.concrete_model)
        if table is None:
            continue
        parts = [names.schema, names.of(table)] if names.schema else [names.of(table)]
        quote = connections[router.db_for_read(model)].ops.quote_name
        # Django has no schemas. It leaves a name that begins and ends with a quote as it is.
        meta.db_table = ".".join(map(quote, parts)) if names.schema else parts[0]
        if not meta.proxy:
            # A migration of the project makes its models of these.
            meta.original_attrs["db_table"] = meta.db_table


def upgrade_tables(using: str, verbosity: int = 1, stdout: Any = None, **_: Any) -> None:
    """Create or upgrade the tables in the database ``using``, if the schedules are there.

    A receiver of ``post_migrate``: a project may have applied the migrations before it set
    ``django://ALIAS``, or may disable migrations in its tests. With another URL it does nothing.
    """
    dynbeat = project_dynbeat()
    if dynbeat is None:
        return
    settings = dynbeat.context.settings
    if alias_of(settings.database_url) != using or settings.create_tables is False:
        return
    if not router.allow_migrate(using, DynbeatConfig.label):
        return
    if schema.upgrade(dynbeat.context.database) and verbosity:
        print(f"  Upgraded the tables of schedules to {schema.head()}", file=stdout or sys.stdout)


def migrate_tables(_apps: Any, editor: Any) -> None:
    """Create or upgrade the tables. The operation of each migration, which is then recorded."""
    upgrade_tables(editor.connection.alias, verbosity=0)


def refuse(sender: Any, **_: Any) -> None:
    """Raise NotSupportedError: a row that Django saves lacks the columns that the model lacks."""
    raise NotSupportedError(
        f"{sender.__name__} is read-only in Django: change schedules with the API of Dynbeat; leave"
        " them out of fixtures with `--exclude dynbeat` of dumpdata and loaddata"
    )


def check_application(**_: Any) -> list[checks.CheckMessage]:
    """Return the errors of the dynbeat_* settings and of their database URL.

    Return a warning without a Dynbeat or its current_session, for a current_session or a router of
    another alias, and for a beat that does not read the schedules. Nothing connects.
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
    context = dynbeat.context
    return [*_unrouted(context), *_unjoined(context), *_left_over(context), *_unread(context)]


def check_relations(**_: Any) -> list[checks.CheckMessage]:
    """Return an error for each relation of a model of the project to a model of this app.

    Its constraint would need tables that exist only after ``migrate``, and would refuse the delete
    of a schedule or the prune of a run.
    """
    hint = "store the owner and the name of the schedule in two CharFields, and read it with"
    hint += " dynbeat.schedules.for_owner(owner).get(name); store the id of a run in a CharField"
    text = "a relation to {}, whose table Django does not manage: the database would refuse"
    text += " `migrate`, or the delete of a schedule"
    return [
        checks.Error(text.format(target.__name__), hint=hint, obj=field, id="dynbeat.E002")
        for field, target in _relations()
    ]


def _relations() -> Iterator[tuple[Any, Any]]:
    """Yield the fields of other apps with a constraint on a table of this app, and its model."""
    ours = {*apps.get_app_config(DynbeatConfig.label).get_models()}
    for model in apps.get_models():
        meta = model._meta  # noqa: SLF001 - documented as public
        for field in (*meta.local_fields, *meta.local_many_to_many):
            remote: Any = field.remote_field
            # A name that no model has is text; Django reports it.
            if remote is None or isinstance(remote.model, str):
                continue
            is_constraint = getattr(field, "db_constraint", getattr(remote, "db_constraint", True))
            if is_constraint and remote.model._meta.concrete_model in ours:  # noqa: SLF001
                yield field, remote.model


def check_tables(databases: Any = None, **_: Any) -> list[checks.CheckMessage]:
    """Return a warning if the tables are missing, or of an older version.

    For ``manage.py check --database ALIAS``, which connects. ``migrate`` calls it too, before it
    creates the tables, so it is no error. With a URL other than ``django://ALIAS`` there is nothing
    to check.
    """
    dynbeat = project_dynbeat()
    if dynbeat is None:
        return []
    hint = None
    try:
        settings = dynbeat.context.settings
        # The error names the command of an administrator.
        if settings.create_tables is not False:
            hint = "`manage.py migrate` creates and upgrades them"
        alias = alias_of(settings.database_url)
        if alias in (databases or ()) and router.allow_migrate(alias, DynbeatConfig.label):
            schema.check(dynbeat.context.database)
    except SchemaError as error:
        return [checks.Warning(str(error), hint=hint, id="dynbeat.W007")]
    except SQLAlchemyError as error:
        text = f"the tables of dynbeat are not checked: {type(error).__name__}"
        return [checks.Warning(text, id="dynbeat.W007")]
    except DynbeatError:
        # check_application reports it.
        return []
    return []


def check_tenants(**_: Any) -> list[checks.CheckMessage]:
    """Return an error if django-tenants would put the tables into the schema of each tenant.

    One beat reads one set of tables.
    """
    tenant_apps = {*getattr(django_settings, "TENANT_APPS", ())}
    if tenant_apps.isdisjoint({DynbeatConfig.name, DynbeatConfig.__module__.partition(".")[0]}):
        return []
    text = "the app of dynbeat is in TENANT_APPS, and one beat reads one set of tables"
    hint = (
        "put it into SHARED_APPS, let the owner name the tenant, as in f'{tenant.schema_name}:1',"
    )
    hint += " and restrict get_owners() of the admin to the owners of a tenant"
    return [checks.Error(text, hint=hint, id="dynbeat.E003")]


def _is_ours(scheduler: object) -> bool:
    """Return whether a value of ``beat_scheduler``, a name or a class, is the one of dynbeat."""
    module = scheduler if isinstance(scheduler, str) else getattr(scheduler, "__module__", "")
    root = re.split(r"[.:]", str(module))[0]
    return root == "celery_dynbeat" or scheduler == ALIAS_OF_SCHEDULER


def _left_over(context: Context) -> list[checks.CheckMessage]:
    """Return a warning if django-celery-beat is installed and beat does not read its tables."""
    if not _is_ours(context.app.conf.beat_scheduler) or not apps.is_installed("django_celery_beat"):
        return []
    text = "django_celery_beat is installed, and beat does not read its tables: its admin and code"
    text += " that saves a PeriodicTask schedule nothing"
    hint = "after the switch, remove it as docs/how-to/switch-from-django-celery-beat.md describes"
    return [checks.Warning(text, hint=hint, id="dynbeat.W003")]


def _unjoined(context: Context) -> list[checks.CheckMessage]:
    """Return a warning if calls do not join Django's transactions in the same database."""
    alias = alias_of(context.settings.database_url)
    if alias is None:
        return []
    hint = "write Dynbeat(app, current_session=celery_dynbeat.django.current_session)"
    if context.current_session is None:
        text = "calls of dynbeat do not join transaction.atomic(); on SQLite they wait for its lock"
        return [checks.Warning(text, hint=hint, id="dynbeat.W002")]
    joined = _joined_alias(context.current_session)
    if joined in {alias, None}:
        return []
    text = f"current_session joins transactions of {joined!r}, and the schedules are in {alias!r}:"
    text += " calls in a transaction of the other alias are refused"
    if alias != DEFAULT_DB_ALIAS:
        hint = f"write current_session=functools.partial(current_session, {alias!r})"
    return [checks.Warning(text, hint=hint, id="dynbeat.W004")]


def _unrouted(context: Context) -> list[checks.CheckMessage]:
    """Return a warning if Django reads the models from another alias than that of the schedules."""
    from celery_dynbeat.django.models import Schedule  # noqa: PLC0415 - apps are not ready

    url, read = context.settings.database_url, router.db_for_read(Schedule)
    if url == Settings().database_url and context.shared_engine is None:
        text = (
            f"dynbeat_database_url is not set, so the schedules are in {url!r}, and the admin reads"
        )
        text += f" them from {read!r}"
        hint = f"set CELERY_DYNBEAT_DATABASE_URL = 'django://{read}'"
        return [checks.Warning(text, hint=hint, id="dynbeat.W006")]
    alias = alias_of(url)
    if alias in {read, None}:
        return []
    text = f"the schedules are in {alias!r}, and the admin reads them from {read!r}"
    hint = f"add a router to DATABASE_ROUTERS that returns {alias!r} for app_label"
    hint += f" {DynbeatConfig.label!r}"
    return [checks.Warning(text, hint=hint, id="dynbeat.W006")]


def _joined_alias(function: Any) -> str | None:
    """Return the alias whose transactions ``function`` joins; None for a project's function."""
    if function is current_session:
        return str(DEFAULT_DB_ALIAS)
    if not isinstance(function, partial) or function.func is not current_session:
        return None
    return str(next(iter((*function.args, *function.keywords.values())), DEFAULT_DB_ALIAS))


def _unread(context: Context) -> list[checks.CheckMessage]:
    """Return a warning if `celery beat` starts a scheduler that does not read the schedules."""
    name = str(context.app.conf.beat_scheduler)
    # "django" is the entry point of django-celery-beat.
    if name == "django" or name.startswith("django_celery_beat"):
        text = f"beat_scheduler = {name!r}: this beat sends the tasks of django-celery-beat only"
    elif name == DEFAULTS["beat_scheduler"]:
        text = "beat_scheduler is not set: `celery beat` does not read the schedules of dynbeat"
    else:
        return []
    hint = 'set beat_scheduler = "dynbeat" (CELERY_BEAT_SCHEDULER with the namespace CELERY)'
    return [checks.Warning(text, hint=hint, id="dynbeat.W005")]


def _check_url(context: Context) -> None:
    """Raise ConfigurationError for invalid settings, or a database that cannot be found."""
    alias = alias_of(context.settings.database_url)
    is_shared = context.shared_engine is not None
    # Django's test runner also checks. There the alias may be the real database: do not use it.
    if is_shared or alias is None or not django_databases.address_of(alias).is_tested:
        context.database.engine  # noqa: B018 - checks the URL and the driver
