"""The baselines: the services and Celery without this project."""
