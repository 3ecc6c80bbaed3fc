"""Addresses of the application: names of models in them, and all of them in the OpenAPI document."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.serving import ServedModel
from tests.server.http.asgi import call, run, serving, tensor


def test_what_the_server_says_of_itself(tiny_bundle: Path, decoder_bundle: Path) -> None:
    async def ask() -> None:
        async with serving(tiny_bundle, decoder_bundle) as app:
            version = app.repository.get("tiny").version
            for path in ("/v2", "/v2/"):
                assert (await call(app, "GET", path)).json["extensions"] == [
                    "binary_tensor_data",
                    "parameters",
                    "model_configuration",
                    "schedule_policy",
                    "statistics",
                ]
            for path in ("/v2/models/tiny", f"/v2/models/tiny/versions/{version}"):
                found = (await call(app, "GET", path)).json
                assert found["versions"] == [version]
                assert found["inputs"][0] == {
                    "name": "input_ids",
                    "datatype": "INT64",
                    "shape": [-1, -1],
                }
            found = (await call(app, "GET", "/v2/models/tiny/ready")).json
            assert found == {"name": "tiny", "ready": True}
            models = (await call(app, "GET", "/v1/models")).json["data"]
            assert [item["id"] for item in models] == [m.name for m in app.repository]
            for item in models:
                assert (await call(app, "GET", f"/v1/models/{item['id']}")).json == item
            reply = await call(app, "GET", "/v1/models/other")
            assert reply.status == 404 and reply.json["error"]["type"] == "invalid_request_error"
            assert "no model 'other'" in reply.error
            assert (await call(app, "POST", "/v1/models/tiny")).status == 405
            for path in ("/v1/models/", "/v1/models/tiny/ready"):
                assert (await call(app, "GET", path)).status == 404
            found = (await call(app, "GET", "/info")).json
            assert found["model_id"] == found["served_model_name"] == "tiny"
            assert found["model_type"] == {"embedding": {"pooling": None}}
            assert found["model_dtype"] == "float32" and found["auto_truncate"]
            document = (await call(app, "GET", "/openapi.json")).json
            known = {path.replace("/versions/{version}", "") for path in document["paths"]}
            assert known == set(app._routes)

    run(ask())


NAMES = ("org/tiny", "org/ready", "org", "a/versions/b", "x y/z%")


@pytest.mark.parametrize("name", NAMES)
def test_names_may_hold_slashes(tiny_bundle: Path, name: str) -> None:
    """However a client writes them: as they are, or as %2F."""

    async def ask() -> None:
        async with serving(tiny_bundle) as app:
            others = [] if name in ("org", "org/ready") else ["org"]
            (first,) = app.repository
            models = [ServedModel(open_bundle(tiny_bundle), item) for item in (*others, name)]
            for model in models:
                model.proven = True
                app.repository.add(model)
            version = first.version
            for written in (quote(name), quote(name, safe="")):
                base = f"/v2/models/{written}"
                assert (await call(app, "GET", base)).json["name"] == name
                for own in (base, f"{base}/versions/{version}"):
                    assert (await call(app, "GET", own + "/ready")).json["name"] == name
                    reply = await call(app, "POST", own + "/infer", tensor(1, 2, 3))
                    assert reply.json["model_name"] == name
                assert (await call(app, "GET", f"/v1/models/{written}")).json["id"] == name
                assert (await call(app, "GET", f"{base}/nothing")).status == 404
                assert (await call(app, "POST", f"{base}/generate")).status == 404
            # One part before the verb is a name all the same.
            found = (await call(app, "GET", "/v2/models/org/config")).status
            assert found == (404 if name == "org/ready" else 200)
            assert (await call(app, "GET", "/v2/models/no/such")).status == 404
            assert (await call(app, "GET", "/v2/models//ready")).status == 404
            for model in models:
                await model.close()

    run(ask())
