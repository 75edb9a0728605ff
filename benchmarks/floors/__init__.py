"""The floors: what the services and Celery give without this project, measured by hand."""
