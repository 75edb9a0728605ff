"""The proxy that simulates network faults, in front of an echo server."""

import socket
import threading
from contextlib import closing

import pytest

from tests.support.proxy import Proxy

SILENCE = 0.2


@pytest.fixture
def echo():
    """Yield the port of an echo server."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        threading.Thread(target=accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def accept(listener):
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=repeat, args=(client,), daemon=True).start()


def repeat(client):
    with closing(client):
        try:
            while chunk := client.recv(100):
                client.sendall(chunk)
        except ConnectionError:
            return


@pytest.fixture
def proxy(echo):
    with Proxy(echo) as made:
        yield made


@pytest.fixture
def connect(proxy):
    clients = []

    def make():
        client = socket.create_connection(("127.0.0.1", proxy.port), timeout=5)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


def send(client, word):
    client.sendall(word)
    return client.recv(100)


def assert_no_answer(client, word):
    client.sendall(word)
    client.settimeout(SILENCE)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.settimeout(5)


def test_bytes_go_both_ways_and_are_counted(proxy, connect):
    client = connect()

    assert send(client, b"word") == b"word"

    assert (proxy.connections, proxy.received, proxy.forwarded) == (1, 4, 4)


def test_a_silent_proxy_keeps_the_connection_and_drops_its_bytes(proxy, connect):
    client = connect()
    send(client, b"word")

    proxy.drop_silently()

    assert_no_answer(client, b"lost")
    assert (proxy.received, proxy.forwarded) == (8, 4)


def test_a_new_connection_to_a_silent_proxy_gets_no_answer(proxy, connect):
    proxy.drop_silently()

    assert_no_answer(connect(), b"word")

    assert (proxy.connections, proxy.forwarded) == (1, 0)


def test_a_connection_that_lost_bytes_is_reset_when_the_network_is_back(proxy, connect):
    client = connect()
    proxy.drop_silently()
    assert_no_answer(client, b"lost")

    proxy.pass_on()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert send(connect(), b"word") == b"word"


def test_bytes_arrive_whose_answers_are_dropped(proxy, connect):
    client = connect()
    send(client, b"word")

    proxy.drop_answers()

    assert_no_answer(client, b"lost")
    assert_no_answer(connect(), b"new")
    assert (proxy.received, proxy.forwarded) == (11, 11)
    proxy.pass_on()
    with pytest.raises(ConnectionResetError):
        client.recv(100)


def test_a_connection_that_was_idle_during_the_fault_still_works(proxy, connect):
    client = connect()
    send(client, b"word")

    proxy.drop_silently()
    proxy.pass_on()

    assert send(client, b"again") == b"again"


def test_a_refusing_proxy_resets_connections_and_refuses_new_ones(proxy, connect):
    client = connect()
    send(client, b"word")

    proxy.refuse()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.pass_on()
    assert send(connect(), b"word") == b"word"


def test_new_connections_work_after_a_reset_of_all(proxy, connect):
    client = connect()
    send(client, b"word")

    proxy.reset_all()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert send(connect(), b"word") == b"word"


def test_the_end_of_the_server_reaches_the_client(connect):
    client = connect()
    send(client, b"word")

    client.shutdown(socket.SHUT_WR)

    assert client.recv(100) == b""


def test_through_returns_a_url_with_the_port_of_the_proxy(proxy):
    url = "postgresql+psycopg://me:secret@127.0.0.1:5432/mine?a=b"

    expected = f"postgresql+psycopg://me:secret@127.0.0.1:{proxy.port}/mine?a=b"
    assert proxy.through(url) == expected


def test_the_proxy_chooses_another_port_if_the_first_is_taken(echo):
    made = Proxy(echo)
    taken = made.port
    with socket.create_server(("127.0.0.1", taken)), made:
        assert made.port != taken
        with socket.create_connection(("127.0.0.1", made.port), timeout=5) as client:
            client.sendall(b"hello")
            assert client.recv(5) == b"hello"
