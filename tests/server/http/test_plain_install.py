"""Where the package tokenizers is missing, and the program that docs/server.md starts a server of one's own with."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.server.http.asgi import call, run, serving


def test_token_ids_need_no_tokenizer(tiny_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    ids, path = [1, 5, 2], "/v1/embeddings"

    async def ask() -> None:
        async with serving(tiny_bundle, token_ids=True) as app:
            wanted = app.repository.get("tiny").model.run({"input_ids": np.array([ids])})
            reply = await call(app, "POST", path, {"model": "tiny", "input": ids})
            assert reply.status == 200, reply.body
            found = reply.json["data"][0]["embedding"]
            np.testing.assert_allclose(found, wanted["pooler_output"][0], atol=1e-5)
            reply = await call(app, "POST", path, {"model": "tiny", "input": "a"})
            assert reply.status == 422 and "pip install tokenizers" in reply.error

    run(ask())


def test_the_documented_program_serves(tiny_bundle: Path) -> None:
    root = Path(__file__).parents[3]
    text = (root / "docs" / "server.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert '"minilm.ecb"' in program
    lines = program.replace('"minilm.ecb"', repr(str(tiny_bundle))).splitlines()
    lines += [
        "reply = await call(app, 'GET', '/v2/models/tiny/ready')",
        "print(reply.status)",
        "await model.close()",
    ]
    body = "".join(f"    {line}\n" for line in lines)
    whole = f"from tests.server.http.asgi import call, run\nasync def main():\n{body}run(main())\n"
    done = subprocess.run([sys.executable, "-c", whole], cwd=root, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "200\n"), done.stderr
