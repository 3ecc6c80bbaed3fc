"""A bundle behind HTTP, with the standard library and numpy alone: an example to start from.

    python3 serve.py [BUNDLE] [PORT]          /opt/model.ecb, 8080

    POST /run      {"input_ids": [[…]], …} -> {"embedding": [[…]]}; 400 says what is wrong with inputs
    GET  /healthz  200 as soon as the model is open

It speaks to whoever reaches the port: who may, and encryption, are a proxy's business. JSON is slow
for large tensors.
"""

import json
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

from edgecompile.runtime import EdgecompileError, InputError, open_bundle

MAX_BODY = 4 << 20
#: Seconds that a client may be silent, in its request or while it is answered.
PATIENCE = 30


def to_arrays(model, values):
    """JSON lists as arrays. Floats get the input's dtype; the model checks everything else."""
    if not isinstance(values, dict):
        raise InputError("the body must be a JSON object of inputs")
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


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = PATIENCE

    def do_GET(self):
        if self.path == "/healthz":
            self.answer(200, {"bundle": self.server.model.info["name"]})
        else:
            self.answer(404, {"error": "GET /healthz or POST /run"})

    def do_POST(self):
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > MAX_BODY:
            # The body stays unread, so the connection can't be used again.
            self.close_connection = True
            self.answer(413, {"error": f"needs a Content-Length of at most {MAX_BODY}"})
            return
        body = self.rfile.read(int(length))
        if self.path != "/run":
            self.answer(404, {"error": "GET /healthz or POST /run"})
            return
        try:
            outputs = self.server.model.run(to_arrays(self.server.model, json.loads(body)))
        except (InputError, ValueError, RecursionError) as error:
            self.answer(400, {"error": str(error)})
        except EdgecompileError as error:
            self.answer(500, {"error": str(error)})
        else:
            self.answer(200, {name: array.tolist() for name, array in outputs.items()})

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main():
    bundle = sys.argv[1] if len(sys.argv) > 1 else "/opt/model.ecb"
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8080
    with open_bundle(bundle) as model, ThreadingHTTPServer(("", port), Handler) as server:
        server.model = model

        def stop(*_):
            # shutdown() waits for serve_forever(), which this very thread is in.
            threading.Thread(target=server.shutdown).start()

        # Process 1 of a container gets no signal that it doesn't ask for.
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        print(f"{bundle} on port {server.server_port}", file=sys.stderr, flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
