"""A ping ends in bounded time, follows no redirect, verifies TLS, and respects a proxy."""

import socket
import ssl
import subprocess
import threading
from urllib.error import URLError

import pytest

from celery_dynbeat.worker.ping_client import Ping, PingClient, PingRequest, PingState
from tests.support.ping_sink import ping_sink

PING = Ping("019e0000-0000-7000-8000-000000000001", PingState.SUCCESS)


@pytest.fixture
def sink(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ping_sink() as made:
        yield made


@pytest.fixture
def client():
    return PingClient(timeout=5)


@pytest.fixture
def listener():
    """Return a socket that accepts connections and does nothing else."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        yield made


def request(url, *, method="POST", body=b""):
    return PingRequest(PING, url, method, url, body)


def address(listener):
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_a_ping_is_one_request_with_its_body(sink, client):
    assert client.send(request(f"{sink.url}/u/fail?rid=1", body=b"ValueError")) == 200

    (received,) = sink.requests
    assert (received.method, received.path, received.body) == ("POST", "/u/fail", "ValueError")
    assert "User-Agent: celery-dynbeat\n" in received.text
    assert "Content-Length: 10\n" in received.text


def test_a_get_has_no_body(sink, client):
    assert client.send(request(f"{sink.url}/p?state=run", method="GET", body=None)) == 200

    (received,) = sink.requests
    assert (received.method, received.body) == ("GET", "")


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(sink, client, status):
    sink.status, sink.headers = status, {"Location": f"{sink.url}/elsewhere"}

    assert client.send(request(f"{sink.url}/u")) == status

    assert [each.path for each in sink.requests] == ["/u"]


def test_the_status_of_an_error_is_returned(sink, client):
    sink.status = 404

    assert client.send(request(f"{sink.url}/u")) == 404


def test_the_body_of_a_reply_is_not_awaited(listener):
    def reply():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            # The body never comes. The client closes the connection.
            while connection.recv(65_536):
                pass

    thread = threading.Thread(target=reply, daemon=True)
    thread.start()

    assert PingClient(timeout=60).send(request(f"http://{address(listener)}/u")) == 200
    thread.join(10)
    assert not thread.is_alive()


def test_a_server_that_never_replies_is_left_at_the_timeout(sink):
    sink.gate.clear()

    with pytest.raises(TimeoutError):
        PingClient(timeout=0.2).send(request(f"{sink.url}/u"))


def test_a_server_that_replies_byte_by_byte_is_left_at_the_timeout(listener):
    ended = threading.Event()

    def drip():
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            # Each byte comes within the timeout, so only a limit for the whole reply ends it.
            while not ended.wait(0.02):
                try:
                    connection.sendall(b"x")
                except OSError:
                    return

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()

    with pytest.raises(TimeoutError):
        PingClient(timeout=0.3).send(request(f"http://{address(listener)}/u"))
    ended.set()
    thread.join(10)


def test_a_server_that_does_not_speak_http_is_an_error(listener, client):
    def reply():
        connection, _ = listener.accept()
        with connection:
            connection.recv(65_536)
            connection.sendall(b"220 smtp.example ESMTP\r\n")

    thread = threading.Thread(target=reply, daemon=True)
    thread.start()

    with pytest.raises(Exception, match="220 smtp"):
        client.send(request(f"http://{address(listener)}/u"))
    thread.join(10)


@pytest.fixture
def certificate(tmp_path):
    """Return the files of a self-signed certificate for 127.0.0.1 and of its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=127.0.0.1", "-addext"),
            *("subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


@pytest.fixture
def tls_url(listener, certificate):
    """Return the URL of a server with the certificate, which replies 200 to each request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    def serve():
        while True:
            try:
                connection, _ = listener.accept()
                with context.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(65_536)
                    secure.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            except ssl.SSLError:
                continue
            except OSError:
                return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"https://{address(listener)}/u"
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(10)


def test_a_trusted_certificate_is_accepted(tls_url, certificate, client, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))

    assert client.send(request(tls_url)) == 200


def test_an_untrusted_certificate_is_rejected(tls_url, client):
    with pytest.raises(URLError) as caught:
        client.send(request(tls_url))

    assert isinstance(caught.value.reason, ssl.SSLCertVerificationError)


def test_the_proxy_of_the_environment_is_used(sink, client, monkeypatch):
    monkeypatch.setenv("http_proxy", sink.url)

    assert client.send(request("http://hc.invalid/u?rid=1")) == 200

    (received,) = sink.requests
    assert received.text.startswith("POST http://hc.invalid/u?rid=1 HTTP/1.1\n")
