"""KServe's protocol V1 on a real bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgecompile.runtime.format.manifest.schema import TensorSpec
from edgecompile.server.errors import Unprocessable
from edgecompile.server.protocol.v1 import read_instances
from edgecompile.server.settings import Limits
from tests.server.http.asgi import call, run, serving


def test_kserves_v1_predicts(tiny_bundle: Path) -> None:
    """Rows of different lengths, each as the model alone would have it; and texts."""
    rows, path = [[5, 6, 7, 8], [5, 6], [9, 8, 7], [1, 2], [3, 4]], "/v1/models/tiny:predict"

    async def ask() -> None:
        limits = Limits(texts=8, elements=50)
        async with serving(tiny_bundle, limits=limits, token_ids=True) as app:
            served = app.repository.get("tiny")
            model = served.model
            for instances in (rows, [{"input_ids": row} for row in rows]):
                found = (await call(app, "POST", path, {"instances": instances})).json
                for row, item in zip(rows, found["predictions"], strict=True):
                    for name, array in model.run({"input_ids": np.array([row])}).items():
                        np.testing.assert_allclose(item[name], array[0], atol=1e-5)
            # Three rows have one shape, and the model takes two at once.
            assert served.scheduler.batches == {1: 6, 2: 2}
            reply = await call(app, "POST", path, {"instances": ["the cat"]})
            wanted = model.encode_texts(["the cat"])["pooler_output"][0]
            np.testing.assert_allclose(
                reply.json["predictions"][0]["pooler_output"], wanted, atol=1e-5
            )
            for body, status, words in (
                ({"inputs": [1]}, 400, "instances is missing"),
                ({"instances": []}, 400, "at least one instance"),
                ({"instances": [[1]], "inputs": 3}, 422, "inputs isn't supported"),
                (
                    {"instances": [{"ids": [1]}]},
                    400,
                    "instances[0] has ids, the inputs are input_ids",
                ),
                ({"instances": [[1], [1.5]]}, 400, "instances[1].input_ids: data holds"),
                ({"instances": [[1], "a"]}, 400, "instances holds texts and others"),
                ({"instances": ["a", {"input_ids": [1]}]}, 400, "instances holds texts and others"),
                ({"instances": [3]}, 400, "instances[0] must be a text or an object"),
                ({"instances": [[1], None]}, 400, "instances[1] must be a text or an object"),
                ({"instances": [[10**30]]}, 400, "holds numbers outside -9223372036854775808.."),
                ({"instances": [[True]]}, 400, "data holds a boolean, which INT64"),
                ({"instances": [[[1, 2], [3]]]}, 400, "nested otherwise"),
                ({"instances": [[1]] * 9}, 413, "the limit is 8"),
                ({"instances": [[1] * 30] * 2}, 413, "over 20 elements"),
            ):
                reply = await call(app, "POST", path, body)
                assert (reply.status, words in reply.json["error"]) == (status, True), reply.body
            # The shortest digits of a float32, as at the other addresses.
            (item,) = (await call(app, "POST", path, {"instances": [[5]]})).json["predictions"]
            digits = max(map(len, map(str, item["pooler_output"])))
            assert digits <= len("-0.123456789")
            # Numbers of a text or a sound without a batch are no rows.
            shapes = {
                "inputs": (TensorSpec("x", "float32", ("length",)),),
                "outputs": (TensorSpec("y", "float32", ("length",)),),
            }
            with pytest.raises(Unprocessable, match="takes no rows of a batch"):
                manifest = model.manifest._replace(text=None, **shapes)
                read_instances(b'{"instances": [1, 2]}', manifest, 8, 50, False)
            for name in ("other:predict", "tiny:explain", "tiny:generate"):
                reply = await call(app, "POST", f"/v1/models/{name}", {"instances": [[1]]})
                assert reply.status == 404
                assert f"no model '{name.removesuffix(':predict')}'" in reply.error
            assert (await call(app, "GET", path)).status == 405
        async with serving(tiny_bundle) as app:
            for instances in (rows, [[5, 6], "the cat"], [3]):
                reply = await call(app, "POST", path, {"instances": instances})
                assert reply.status == 422 and "--token-ids" in reply.json["error"]
                assert 'or name the input: {"input_ids": […]}' in reply.json["error"]
            for other in (None, True, 1.5):
                reply = await call(app, "POST", path, {"instances": [{"input_ids": [5]}, other]})
                assert reply.status == 400 and "instances[1] must be a text" in reply.json["error"]
            named = {"instances": [{"input_ids": row} for row in rows]}
            assert (await call(app, "POST", path, named)).status == 200

    run(ask())
