"""Who can reach the studio: this machine, under its own name."""

import socket
from pathlib import Path

import pytest

LISTENING = "0A"


def shake_hands(port: int, host: str) -> str:
    """Ask for a WebSocket under a host's name; return the first line of the answer."""
    request = (
        "GET /_stcore/stream HTTP/1.1\r\n"
        f"Host: {host}\r\nOrigin: http://{host}\r\n"
        "Connection: Upgrade\r\nUpgrade: websocket\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(request.encode())
        return connection.recv(200).decode(errors="replace").split("\r\n")[0]


def test_a_name_that_was_rebound_to_this_machine_is_refused(port):
    assert " 403 " in shake_hands(port, "evil.example") + " "
    assert " 101 " in shake_hands(port, f"127.0.0.1:{port}") + " "
    assert " 101 " in shake_hands(port, f"localhost:{port}") + " "


def test_only_this_machine_is_listened_on(port):
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    if not tables[0].exists():
        pytest.skip("needs Linux's table of sockets; there is none here")
    lines = [x for table in tables if table.exists() for x in table.read_text().splitlines()[1:]]
    rows = [line.split() for line in lines]
    addresses = {
        row[1].split(":")[0]
        for row in rows
        if row[3] == LISTENING and int(row[1].split(":")[1], 16) == port
    }
    assert addresses == {"0100007F"}  # 127.0.0.1, as the kernel writes it
