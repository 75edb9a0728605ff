"""The tables of each package, and how its scheduler reads them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The tables of one package.

    - ``generic``: a row names its kind of schedule in ``discriminator``, in place of a foreign key
      for each kind.
    - ``counts_from_change``: without a last run, the scheduler counts from ``date_changed``.
    - ``ends_at_expiry``: ``expires`` stops the schedule. Otherwise only its messages expire.
    - ``runs_at_start``: without a last run, a crontab and a solar schedule run at ``start_time``.
    - ``naive_is_local``: instants without a zone are in the zone of the Celery application.
    - ``crontab_zone``: the zone of a crontab that names no zone. None means the zone of the
      application.
    """

    package: str
    tasks: str
    intervals: str
    crontabs: str
    solars: str
    clockeds: str | None = None
    generic: bool = False
    counts_from_change: bool = False
    ends_at_expiry: bool = False
    runs_at_start: bool = True
    naive_is_local: bool = False
    crontab_zone: str | None = None


#: The table of django-celery-beat whose single row says when something changed.
DJANGO_CHANGES = "django_celery_beat_periodictasks"
DJANGO_CELERY_BEAT = Layout(
    package="django-celery-beat",
    tasks="django_celery_beat_periodictask",
    intervals="django_celery_beat_intervalschedule",
    crontabs="django_celery_beat_crontabschedule",
    solars="django_celery_beat_solarschedule",
    clockeds="django_celery_beat_clockedschedule",
    counts_from_change=True,
    ends_at_expiry=True,
)
SQLALCHEMY_CELERY_BEAT = Layout(
    package="sqlalchemy-celery-beat",
    tasks="celery_periodictask",
    intervals="celery_intervalschedule",
    crontabs="celery_crontabschedule",
    solars="celery_solarschedule",
    clockeds="celery_clockedschedule",
    generic=True,
    crontab_zone="UTC",
)
CELERY_SQLALCHEMY_SCHEDULER = Layout(
    package="celery-sqlalchemy-scheduler",
    tasks="celery_periodic_task",
    intervals="celery_interval_schedule",
    crontabs="celery_crontab_schedule",
    solars="celery_solar_schedule",
    runs_at_start=False,
    naive_is_local=True,
    crontab_zone="UTC",
)
