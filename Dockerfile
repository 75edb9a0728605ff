# One image with the application of examples/quickstart, for all services of docker-compose.yml.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY celery_dynbeat ./celery_dynbeat
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir '.[postgres,redis,flower]'

FROM python:3.13-slim
RUN useradd --system --create-home --uid 10001 celery
COPY --from=build /venv /venv
COPY examples/quickstart/tasks.py /app/tasks.py
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
USER celery
CMD ["celery", "-A", "tasks", "worker", "-l", "INFO"]
