# PostgreSQL with Patroni 4. Debian 12 has Patroni 3.0: see docs/how-to/high-availability.md.
FROM postgres:17-bookworm
RUN apt-get update \
  && apt-get install --yes --no-install-recommends python3-venv \
  && rm -rf /var/lib/apt/lists/* \
  && python3 -m venv /opt/patroni \
  && /opt/patroni/bin/pip install --no-cache-dir 'patroni[etcd3]>=4.1' 'psycopg[binary]>=3'
COPY patroni.yml /etc/patroni.yml
USER postgres
CMD ["sh", "-c", "PATRONI_NAME=$HOSTNAME PATRONI_RESTAPI_CONNECT_ADDRESS=$HOSTNAME:8008 \
PATRONI_POSTGRESQL_CONNECT_ADDRESS=$HOSTNAME:5432 exec /opt/patroni/bin/patroni /etc/patroni.yml"]
