"""A bundle behind HTTP, with the standard library and numpy alone: an example to start from, for devices.

The server of the project is ``python -m edgecompile.server`` (docs/server.md).

    python3 serve.py BUNDLE [--host 127.0.0.1] [--port 8080] [--connections 256] [--patience 8]

    POST /run      {"input_ids": [[…]], …} -> {"embedding": [[…]]}; 400 says what is wrong with inputs
                   {"texts": ["…", …]} does the same where the bundle has a tokenizer
    GET  /healthz  200 as soon as the model is open

Without an installed edgecompile-runtime: python3 BUNDLE serve.py BUNDLE. It speaks to whoever reaches
the port: who may, and encryption, are a proxy's business. JSON is slow for large tensors.
"""

import argparse
import contextlib
import io
import json
import re
import signal
import socket
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from edgecompile.runtime import EdgecompileError, InputError, open_bundle

MAX_BODY = 4 << 20
#: Seconds in which a request must have come whole, from the end of the one before it on, unless
#: --patience gives others. `docker stop` kills after 10.
PATIENCE = 8
METHODS = {"/healthz": ("GET", "HEAD"), "/run": ("POST",)}


def to_arrays(model, values):
    """JSON lists as arrays. Floats get the input's dtype; the model checks everything else."""
    dtypes = {item["name"]: np.dtype(item["dtype"]) for item in model.info["inputs"]}
    arrays = {}
    for name, value in values.items():
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise InputError(f"{name} isn't a tensor: {error}") from error
        dtype = dtypes.get(name, array.dtype)
        # An integer's dtype isn't forced on: 1.5 would become 1.
        floats = dtype.kind == "f" and array.dtype.kind in "iuf"
        arrays[name] = array.astype(dtype) if floats else array
    return arrays


def run(model, values):
    """The outputs for a request's body."""
    if not isinstance(values, dict):
        raise InputError('the body must be a JSON object of inputs, or {"texts": [...]}')
    if values.keys() == {"texts"} and "texts" not in {
        item["name"] for item in model.info["inputs"]
    }:
        return model.encode_texts(values["texts"])
    return model.run(to_arrays(model, values))


def to_lists(value):
    """An array, or one for each text, as JSON has it."""
    return value.tolist() if isinstance(value, np.ndarray) else [item.tolist() for item in value]


def to_json(value):
    """As bytes. JSON has no NaN and no infinities: ValueError."""
    return json.dumps(value, allow_nan=False).encode()


def refuse_constant(name):
    raise InputError(f"{name} isn't JSON")


class Timed(io.RawIOBase):
    """What a connection sends until a deadline; each byte alone would come in time for ever."""

    def __init__(self, connection):
        self.connection = connection
        self.deadline = 0.0

    def readable(self):
        return True

    def readinto(self, buffer):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request took too long")
        self.connection.settimeout(left)
        return self.connection.recv_into(buffer)


class Lines(io.BufferedReader):
    """A connection's bytes, read by lines. Notes a carriage return within one: the parser of headers
    would take it for the line's end, which whoever passed the request on may not have done."""

    stray_return = False

    def readline(self, size=-1):
        line = super().readline(size)
        self.stray_return |= b"\r" in line[:-2]
        return line


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # An answer is one write, and isn't held back until the client has acknowledged something.
    disable_nagle_algorithm = True
    wbufsize = -1

    def setup(self):
        super().setup()
        self.timed = Timed(self.connection)
        self.rfile = Lines(self.timed)

    def handle_one_request(self):
        self.timed.deadline = time.monotonic() + self.server.patience
        self.server.waiting.add(self.connection)
        try:
            if self.server.stopping:
                self.close_connection = True
            else:
                super().handle_one_request()  # ends the connection at a TimeoutError
        finally:
            self.server.waiting.discard(self.connection)

    def parse_request(self):
        self.server.waiting.discard(self.connection)
        return super().parse_request()

    def handle_expect_100(self):
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def answer_request(self):
        methods = METHODS.get(self.path)
        body = self.read_body()
        if body is None:
            return
        if methods is None:
            self.answer(404, {"error": "GET /healthz or POST /run"})
        elif self.command not in methods:
            self.answer(405, {"error": f"{self.path} takes {methods[0]}"}, Allow=", ".join(methods))
        elif self.path == "/healthz":
            self.answer(200, {"bundle": self.server.model.info["name"]})
        else:
            self.answer_run(body)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer_request

    def read_body(self):
        """The request's body; None where it can't be told where it ends, which was answered."""
        if self.rfile.stray_return:
            return self.refuse(400, "a header holds a carriage return")
        # The parser drops a line that it can't read, and may drop all that follow.
        for defect in self.headers.defects:
            return self.refuse(400, f"malformed headers: {type(defect).__name__}")
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers:
            return self.refuse(501, "give a Content-Length, not a Transfer-Encoding")
        if not lengths and self.command != "POST":
            return b""
        if not lengths:
            return self.refuse(411, "needs a Content-Length")
        if len(lengths) > 1 or not re.fullmatch("[0-9]{1,15}", lengths[0]):
            return self.refuse(400, "Content-Length isn't one number")
        if int(lengths[0]) > MAX_BODY:
            return self.refuse(413, f"the body may have at most {MAX_BODY} bytes")
        body = self.rfile.read(int(lengths[0]))
        return body if len(body) == int(lengths[0]) else self.refuse(400, "the body is cut off")

    def refuse(self, status, text):
        # The rest stays unread: it mustn't be taken for the next request.
        self.close_connection = True
        self.answer(status, {"error": text}, Connection="close")

    def answer_run(self, body):
        try:
            values = json.loads(body, parse_constant=refuse_constant)
            outputs = run(self.server.model, values)
        except (InputError, ValueError, RecursionError) as error:
            return self.answer(400, {"error": str(error)})
        except EdgecompileError as error:
            return self.answer(500, {"error": str(error)})
        try:
            told = to_json({name: to_lists(value) for name, value in outputs.items()})
        except ValueError:
            return self.answer(
                500, {"error": "an output holds NaN or infinities, which JSON lacks"}
            )
        self.send(200, told)

    def answer(self, status, value, **headers):
        self.send(status, to_json(value), **headers)

    def send(self, status, body, **headers):
        self.connection.settimeout(self.server.patience)  # for a client that reads nothing
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.server.stopping:
            headers["Connection"] = "close"
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code, message=None, explain=None):
        """What the base class finds wrong with a request line or headers."""
        self.refuse(code, message or self.responses[code][0])


class Server(ThreadingHTTPServer):
    request_queue_size = 1024  # connections that come at once; the system's limit may be less

    def __init__(self, address, model, connections, patience=PATIENCE):
        self.model = model
        self.connections = connections
        self.patience = patience
        self.free = threading.BoundedSemaphore(connections)
        self.waiting = set()  # connections between two requests
        self.stopping = False
        super().__init__(address, Handler)

    def server_close(self):
        """Returns when every request that has begun is answered."""
        super().server_close()
        self.stopping = True
        for connection in list(self.waiting):
            with contextlib.suppress(OSError):  # the client went away
                connection.shutdown(socket.SHUT_RD)
        for _ in range(self.connections):
            self.free.acquire()

    def process_request(self, request, client):
        if self.free.acquire(blocking=False):
            try:
                super().process_request(request, client)
            except BaseException:  # no thread could be started
                self.free.release()
                raise
        else:
            request.settimeout(1)
            request.sendall(
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\n"
                b"Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
            self.shutdown_request(request)

    def process_request_thread(self, request, client):
        try:
            super().process_request_thread(request, client)
        finally:
            self.free.release()

    def handle_error(self, request, client):
        if not isinstance(sys.exc_info()[1], OSError):  # a client that went away is no error
            super().handle_error(request, client)


def main():
    parser = argparse.ArgumentParser(description="Runs a bundle for HTTP clients.")
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: all)")
    parser.add_argument("--port", type=int, default=8080, help="0: any free one")
    parser.add_argument("--connections", type=int, default=256, help="how many at once")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds for a request")
    options = parser.parse_args()
    address = (options.host, options.port)
    with open_bundle(options.bundle) as model, Server(
        address, model, options.connections, options.patience
    ) as server:

        def stop(*_):
            # shutdown() waits for serve_forever(), which this very thread is in.
            threading.Thread(target=server.shutdown).start()

        # Process 1 of a container gets no signal that it doesn't ask for.
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        print(f"{options.bundle} on port {server.server_port}", file=sys.stderr, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
