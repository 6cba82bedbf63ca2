"""Ports for the servers of tests that nobody else can take between the choice and the start."""

import socket

_guards: list[socket.socket] = []


def free_port() -> int:
    """A port of loopback that the system gives to nobody else while this process lives.

    A socket that is bound to it and does not listen keeps it: on Linux a server that sets
    SO_REUSEADDR, as uvicorn and PostgreSQL do, may still listen there.
    """
    guard = socket.socket()
    guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    guard.bind(("127.0.0.1", 0))
    _guards.append(guard)
    return int(guard.getsockname()[1])
