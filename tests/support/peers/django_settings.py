"""The Django project of the tests of django-celery-beat: DATABASE_URL names its database."""

import os

import pymysql
from sqlalchemy import make_url

_URL = make_url(os.environ["DATABASE_URL"])
# Django's back end for MySQL imports MySQLdb.
pymysql.install_as_MySQLdb()
_ENGINES = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "sqlite": "sqlite3"}

SECRET_KEY = "tests"
USE_TZ = True
TIME_ZONE = "UTC"
CELERY_TIMEZONE = os.environ.get("CELERY_TIMEZONE", "UTC")
# The tables of the models: faster than all migrations, and with the same result.
MIGRATION_MODULES = {"django_celery_beat": None}
INSTALLED_APPS = ["django_celery_beat"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
DATABASES = {
    "default": {
        "ENGINE": f"django.db.backends.{_ENGINES[_URL.get_backend_name()]}",
        "NAME": _URL.database,
        "USER": _URL.username or "",
        "PASSWORD": _URL.password or "",
        "HOST": _URL.host or _URL.query.get("host", ""),
        "PORT": str(_URL.port or ""),
        "OPTIONS": {"timeout": 20} if _URL.get_backend_name() == "sqlite" else {},
    }
}
