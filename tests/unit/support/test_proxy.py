"""The proxy that plays a network on a bad day, in front of a server that repeats what it hears."""

import socket
import threading
from contextlib import closing

import pytest

from tests.support.proxy import Proxy

SILENCE = 0.2


@pytest.fixture
def echo():
    """Give the port of a server that sends back what it gets."""
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


def say(client, word):
    client.sendall(word)
    return client.recv(100)


def hears_nothing(client, word):
    client.sendall(word)
    client.settimeout(SILENCE)
    with pytest.raises(TimeoutError):
        client.recv(100)
    client.settimeout(5)


def test_bytes_go_both_ways_and_are_counted(proxy, connect):
    client = connect()

    assert say(client, b"word") == b"word"

    assert (proxy.connections, proxy.received, proxy.forwarded) == (1, 4, 4)


def test_a_silent_proxy_keeps_the_connection_and_swallows_its_bytes(proxy, connect):
    client = connect()
    say(client, b"word")

    proxy.drop_silently()

    hears_nothing(client, b"lost")
    assert (proxy.received, proxy.forwarded) == (8, 4)


def test_who_connects_to_a_silent_proxy_finds_silence(proxy, connect):
    proxy.drop_silently()

    hears_nothing(connect(), b"word")

    assert (proxy.connections, proxy.forwarded) == (1, 0)


def test_a_connection_that_lost_bytes_is_reset_when_the_network_is_back(proxy, connect):
    client = connect()
    proxy.drop_silently()
    hears_nothing(client, b"lost")

    proxy.pass_on()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert say(connect(), b"word") == b"word"


def test_a_connection_that_was_idle_meanwhile_goes_on(proxy, connect):
    client = connect()
    say(client, b"word")

    proxy.drop_silently()
    proxy.pass_on()

    assert say(client, b"again") == b"again"


def test_a_refusing_proxy_resets_who_is_connected_and_refuses_who_comes(proxy, connect):
    client = connect()
    say(client, b"word")

    proxy.refuse()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with pytest.raises(ConnectionRefusedError):
        connect()
    proxy.pass_on()
    assert say(connect(), b"word") == b"word"


def test_a_reset_of_all_leaves_the_door_open(proxy, connect):
    client = connect()
    say(client, b"word")

    proxy.reset_all()

    with pytest.raises(ConnectionResetError):
        client.recv(100)
    assert say(connect(), b"word") == b"word"


def test_the_end_of_the_server_reaches_the_client(connect):
    client = connect()
    say(client, b"word")

    client.shutdown(socket.SHUT_WR)

    assert client.recv(100) == b""


def test_a_url_leads_through_the_proxy(proxy):
    url = "postgresql+psycopg://me:secret@127.0.0.1:5432/mine?a=b"

    expected = f"postgresql+psycopg://me:secret@127.0.0.1:{proxy.port}/mine?a=b"
    assert proxy.through(url) == expected
