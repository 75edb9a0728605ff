# One image with the application of examples/quickstart, for all services of docker-compose.yml.
# For a release, pin the base image by its digest: --build-arg PYTHON=python:3.13-slim@sha256:...
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
RUN pip install --no-cache-dir 'uv>=0.9,<1' && uv venv /venv
WORKDIR /src
ENV VIRTUAL_ENV=/venv UV_COMPILE_BYTECODE=1 UV_LINK_MODE=copy
# The dependencies first: a change of the code uses their layer again.
COPY pyproject.toml ./
RUN uv pip install --no-cache --requirements pyproject.toml \
    --extra postgres --extra redis --extra flower
COPY README.md LICENSE ./
COPY celery_dynbeat ./celery_dynbeat
RUN uv pip install --no-cache --no-deps .

FROM ${PYTHON}
LABEL org.opencontainers.image.title="celery_dynbeat quickstart" \
      org.opencontainers.image.description="Celery with database-backed dynamic schedules" \
      org.opencontainers.image.source="https://github.com/celery-dynbeat/celery-dynbeat" \
      org.opencontainers.image.licenses="BSD-3-Clause"
# tini forwards signals to Celery, and collects the processes that it leaves.
RUN apt-get update && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --create-home --uid 10001 celery
COPY --from=build /venv /venv
COPY examples/quickstart/tasks.py /app/tasks.py
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
WORKDIR /app
USER celery
# Celery's warm shutdown: running tasks end.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--"]
CMD ["celery", "-A", "tasks", "worker", "-l", "INFO"]
