# The application of examples/several-hosts, for all of its services. Context: the repository.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY celery_dynbeat ./celery_dynbeat
RUN python -m venv /venv \
  && /venv/bin/pip install --no-cache-dir '.[postgres,flower,metrics]' fastapi uvicorn

FROM python:3.13-slim
RUN useradd --system --create-home --uid 10001 celery
COPY --from=build /venv /venv
COPY examples/several-hosts/app.py examples/several-hosts/api.py /app/
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 STARTS=/tmp/starts.jsonl
WORKDIR /app
USER celery
CMD ["celery", "-A", "app", "worker", "-l", "INFO"]
