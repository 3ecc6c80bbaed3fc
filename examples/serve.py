"""A bundle behind HTTP, with the standard library and numpy: an example to start from, for devices.

    python3 serve.py BUNDLE [--host 127.0.0.1] [--port 8080]

    POST /run      {"input_ids": [[…]], …} -> {"embedding": [[…]]}; 400 says what is wrong with inputs
                   {"texts": ["…", …]} does the same where the bundle has a tokenizer
    GET  /healthz  200 as soon as the model is open

Without an installed edgecompile-runtime: python3 BUNDLE serve.py BUNDLE. A proxy has to limit clients and encrypt.
The project's server is ``python -m edgecompile.server`` (docs/server.md).
"""

import argparse
import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from edgecompile.runtime import EdgecompileError, InputError, follow

MAX_BODY = 4 << 20


def run(model, values):
    """The outputs for a request's body, as JSON has them."""
    if not isinstance(values, dict):
        raise InputError('the body must be a JSON object of inputs, or {"texts": [...]}')
    dtypes = {item["name"]: np.dtype(item["dtype"]) for item in model.info["inputs"]}
    if values.keys() == {"texts"} and "texts" not in dtypes:
        outputs = model.encode_texts(values["texts"])
        return {name: [row.tolist() for row in rows] for name, rows in outputs.items()}
    arrays = {}
    for name, value in values.items():
        try:
            array = np.asarray(value)
        except ValueError as error:  # rows of different lengths
            raise InputError(f"{name} isn't a tensor: {error}") from error
        # Only floats get the input's dtype. An integer's would turn 1.5 into 1, which the model is to refuse.
        floats = name in dtypes and dtypes[name].kind == "f" and array.dtype.kind in "iuf"
        arrays[name] = array.astype(dtypes[name]) if floats else array
    return {name: array.tolist() for name, array in model.run(arrays).items()}


class Handler(BaseHTTPRequestHandler):
    """One request of a connection, as in HTTP/1.0: whatever follows it is never read."""

    timeout = 8  # seconds without a byte

    def do_GET(self):
        if self.path == "/healthz":
            return self.answer(200, {"bundle": self.server.model.info["name"]})
        self.answer(404, {"error": "GET /healthz or POST /run"})

    def do_POST(self):
        if self.path != "/run":
            return self.answer(404, {"error": "GET /healthz or POST /run"})
        try:
            length = int(self.headers["Content-Length"] or -1)
            if not 0 <= length <= MAX_BODY:
                return self.answer(413, {"error": f"needs a body of at most {MAX_BODY} bytes"})
            outputs = run(self.server.model, json.loads(self.rfile.read(length)))
        except (InputError, ValueError, RecursionError) as error:
            return self.answer(400, {"error": str(error)})
        except EdgecompileError as error:
            return self.answer(500, {"error": str(error)})
        self.answer(200, outputs)

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close() waits for the requests that have begun


def main():
    parser = argparse.ArgumentParser(description="Runs a bundle for HTTP clients.")
    parser.add_argument("bundle", metavar="BUNDLE")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (0.0.0.0: all)")
    parser.add_argument("--port", type=int, default=8080, help="0: any free one")
    options = parser.parse_args()
    # A new version at the bundle's path serves from SIGHUP on, without a restart.
    with follow(options.bundle, signal_number=signal.SIGHUP) as model, Server(
        (options.host, options.port), Handler
    ) as server:
        server.model = model
        # Process 1 of a container gets no signal that it doesn't ask for. shutdown() waits for
        # serve_forever(), which this thread is in.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
        print(f"{options.bundle} on port {server.server_port}", file=sys.stderr, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
