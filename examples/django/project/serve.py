"""Serve the pages with the standard library: ``python -m project.serve 8000``.

A real project uses gunicorn or uvicorn.
"""

import os
import sys
from socketserver import ThreadingMixIn
from wsgiref.simple_server import WSGIServer, make_server

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application


class ThreadingServer(ThreadingMixIn, WSGIServer):
    """A server with a thread for each request."""

    daemon_threads = True


def main() -> None:
    """Serve until the process is terminated."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    # The style sheets of the admin.
    application, port = StaticFilesHandler(get_wsgi_application()), int(sys.argv[1])
    with make_server("127.0.0.1", port, application, server_class=ThreadingServer) as server:
        print(f"serving http://127.0.0.1:{server.server_port}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
