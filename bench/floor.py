"""What any extender in this language costs at least: a thread for each connection, which parses the same request with
the same parser, and writes an answer of the same size that it had ready. It decides nothing and checks nothing.
"""

import socket
import threading
from collections.abc import Callable

import orjson

Secure = Callable[[socket.socket], socket.socket]


def answer(port: int) -> None:
    """Serve on a port of this machine."""
    serve(socket.create_server(("127.0.0.1", port)))


def serve(listener: socket.socket, secure: Secure = lambda sock: sock) -> None:
    """Answer forever. The path of a request is the number of bytes of the answer's body.

    Args:
        listener: for connections.
        secure: puts TLS around one.
    """
    while True:
        sock, _ = listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_converse, args=(sock, secure), daemon=True).start()


def _converse(plain: socket.socket, secure: Secure) -> None:
    sock, ready = secure(plain), dict[bytes, bytes]()
    while data := sock.recv(262144):
        head, _, body = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        while len(body) < length:
            body += sock.recv(262144)
        orjson.loads(body)
        size = head.split(b" ", 2)[1][1:]
        if size not in ready:
            ready[size] = b"HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n" % size + b"x" * int(size)
        sock.sendall(ready[size])
