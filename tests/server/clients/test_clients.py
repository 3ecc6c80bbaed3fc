"""Other projects' clients against the server: tritonclient, KServe's SDK, OpenAI's, Cohere's, schemathesis."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import open_bundle
from edgecompile.server.settings import Limits
from tests.needs import need, need_variable
from tests.server.http.sockets import Served
from tests.server.processes import Server, serving

pytestmark = pytest.mark.slow

IDS = np.array([[5, 6, 7, 8, 9]])
TEXTS = ["the cat sat", "the"]


@pytest.fixture(scope="module")
def python() -> str:
    return need_variable("EDGECOMPILE_CLIENTS_PYTHON")


@pytest.fixture(scope="module")
def server(tiny_bundle: Path) -> Iterator[Server]:
    with serving(tiny_bundle) as server:
        yield server


def script(python: str, server: Server, program: str) -> Any:
    """What a program prints as JSON; ``URL`` and ``IDS`` are given to it."""
    head = f"import json; import numpy as np; URL = '127.0.0.1:{server.port}'\n"
    head += f"IDS = np.array({IDS.tolist()}, np.int64); TEXTS = {TEXTS!r}\n"
    environment = {**os.environ, "NO_PROXY": "*"}
    done = subprocess.run(
        [python, "-c", head + program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def wanted(bundle: Path, name: str = "pooler_output") -> np.ndarray:
    with open_bundle(bundle) as model:
        return model.run({"input_ids": IDS})[name]


def test_tritonclient(python: str, server: Server, tiny_bundle: Path) -> None:
    found = script(
        python,
        server,
        """
import tritonclient.http as t
from tritonclient.utils import InferenceServerException
client = t.InferenceServerClient(URL)
assert client.is_server_live() and client.is_server_ready() and client.is_model_ready("tiny")
assert client.get_server_metadata()["name"] == "edgecompile"
assert client.get_model_metadata("tiny")["inputs"][0]["datatype"] == "INT64"
assert client.get_model_config("tiny")["input"][0]["dims"] == [-1, -1]
found = []
for binary_in in (True, False):
    for binary_out in (True, False):
        given = t.InferInput("input_ids", list(IDS.shape), "INT64")
        given.set_data_from_numpy(IDS, binary_data=binary_in)
        asked = [t.InferRequestedOutput("pooler_output", binary_data=binary_out)]
        answer = client.infer("tiny", [given], outputs=asked, request_id="me", timeout=10_000_000)
        assert answer.get_response()["id"] == "me"
        found.append(answer.as_numpy("pooler_output").tolist())
text = t.InferInput("text", [2], "BYTES")
text.set_data_from_numpy(np.array(TEXTS, object))
asked = [t.InferRequestedOutput("pooler_output")]
assert client.infer("tiny", [text], outputs=asked).as_numpy("pooler_output").shape == (2, 16)
given = t.InferInput("input_ids", [1, 1], "INT64")
given.set_data_from_numpy(np.array([[99]]))
classes = [t.InferRequestedOutput("pooler_output", class_count=2)]
for outputs, status, words in ((None, "400", "outside 0..39"), (classes, "422", "classification")):
    try:
        client.infer("tiny", [given], outputs=outputs)
    except InferenceServerException as error:
        assert error.status() == status and words in error.message(), error
    else:
        raise AssertionError("not refused")
(stats,) = client.get_inference_statistics("tiny")["model_stats"]
assert stats["inference_stats"]["success"]["count"] >= 5 and stats["inference_stats"]["fail"]["count"] == 1
print(json.dumps(found))
""",
    )
    for item in found:
        np.testing.assert_allclose(item, wanted(tiny_bundle), atol=1e-5)


def test_openai(python: str, server: Server, tiny_bundle: Path) -> None:
    found = script(
        python,
        server,
        """
import openai
client = openai.OpenAI(base_url=f"http://{URL}/v1", api_key="any", max_retries=0)
(listed,) = client.models.list()
assert listed.id == "tiny" and client.models.retrieve("tiny") == listed
try:
    client.models.retrieve("other")
except openai.NotFoundError as error:
    assert "no model 'other'" in error.message and error.code == "not_found"
else:
    raise AssertionError("not refused")
plain = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
usual = client.embeddings.create(model="tiny", input=TEXTS)
assert plain.usage == usual.usage
try:
    client.embeddings.create(model="other", input="a")
except openai.NotFoundError as error:
    assert "no model 'other'" in error.message
try:  # as LangChain does, in OpenAI's vocabulary
    client.embeddings.create(model="tiny", input=[[1, 2]])
except openai.UnprocessableEntityError as error:
    assert "check_embedding_ctx_length=False" in error.message
else:
    raise AssertionError("not refused")
try:
    client.completions.create(model="tiny", prompt="a")
except openai.UnprocessableEntityError as error:
    assert "not a language model" in error.message
print(json.dumps([[d.embedding for d in x.data] for x in (plain, usual)]))
""",
    )
    with open_bundle(tiny_bundle) as model:
        texts = model.encode_texts(TEXTS)["pooler_output"]
    for item in found:
        np.testing.assert_allclose(item, texts, atol=1e-5)


def test_openai_goes_on_from_texts_and_chats(python: str, chatting_bundle: Path) -> None:
    """Whole and as events, of which there is one for each token."""
    with serving(chatting_bundle) as server:
        found = script(
            python,
            server,
            """
import openai
client = openai.OpenAI(base_url=f"http://{URL}/v1", api_key="any", max_retries=0)
asked = {"model": "speaking", "temperature": 0, "max_tokens": 8}
text = {**asked, "prompt": "w3 w1 w4 w5"}
chat = {**asked, "messages": [{"role": "user", "content": "w1"}]}
events = {"stream": True, "stream_options": {"include_usage": True}}
found = []

plain = client.completions.create(**text)
found.append([plain.choices[0].text, plain.choices[0].finish_reason, plain.usage.total_tokens])
*pieces, last = client.completions.create(**text, **events)
told = "".join(piece.choices[0].text for piece in pieces)
found.append([told, pieces[-1].choices[0].finish_reason, last.usage.total_tokens])

plain = client.chat.completions.create(**chat)
assert plain.choices[0].message.role == "assistant"
choice = plain.choices[0]
found.append([choice.message.content, choice.finish_reason, plain.usage.total_tokens])
*pieces, last = client.chat.completions.create(**chat, **events)
assert pieces[0].choices[0].delta.role == "assistant" and len(pieces) > 4
told = "".join(piece.choices[0].delta.content or "" for piece in pieces)
found.append([told, pieces[-1].choices[0].finish_reason, last.usage.total_tokens])

for call in (client.completions.create, client.chat.completions.create):
    wrong = {**(text if call == client.completions.create else chat), "model": "other"}
    for more in ({}, {"stream": True}):
        try:
            call(**wrong, **more)
        except openai.NotFoundError as error:
            assert "no model 'other'" in error.message
        else:
            raise AssertionError("not refused")
try:
    client.chat.completions.create(**{**chat, "messages": [{"role": "tool", "content": "w1"}]})
except openai.BadRequestError as error:
    assert "no tools here" in error.message
# A stream that its client leaves ends its text, and the next one is whole.
with client.completions.create(**{**text, "max_tokens": 100}, stream=True) as stream:
    next(iter(stream))
assert client.completions.create(**text).choices[0].text == found[0][0]
print(json.dumps(found))
""",
        )
        assert server.ask("GET", "/v2/health/ready")[0] == 200
    with open_bundle(chatting_bundle) as model:
        # The template makes the same prompt of the chat.
        ids = model.generate([3, 1, 4, 5], max_new_tokens=8, do_sample=False)
    ended = ids[-1] == 7
    wanted = "".join(f" w{item}" for item in (ids[:-1] if ended else ids))
    assert found == [[wanted, "stop" if ended else "length", 4 + len(ids)]] * 4


def test_openai_asks_for_forms_and_tools(python: str, bytewise_bundle: Path) -> None:
    """Structured outputs, calls of tools, plain and as events, and the turn with a tool's result."""
    with serving(bytewise_bundle) as server:
        found = script(
            python,
            server,
            """
import openai
client = openai.OpenAI(base_url=f"http://{URL}/v1", api_key="any", max_retries=0)
user = {"role": "user", "content": "go on"}
asked = {"model": "bytewise", "temperature": 0, "max_tokens": 60, "messages": [user]}
walk = {"type": "function", "function": {"name": "walk", "parameters": {
    "type": "object", "properties": {"far": {"type": "boolean"}},
    "required": ["far"], "additionalProperties": False}}}
schema = {"type": "object", "properties": {"open": {"type": "boolean"}}, "required": ["open"],
          "additionalProperties": False}
form = {"type": "json_schema", "json_schema": {"name": "door", "schema": schema, "strict": True}}
create = client.chat.completions.create
answer = create(**asked, response_format=form).choices[0]
assert answer.finish_reason == "stop"
found = [json.loads(answer.message.content)]

answer = create(**asked, tools=[walk], tool_choice="required").choices[0]
assert answer.finish_reason == "tool_calls" and answer.message.content is None
(called,) = answer.message.tool_calls
found.append([called.function.name, json.loads(called.function.arguments)])
named = {"type": "function", "function": {"name": "walk"}}
name, arguments = "", ""
for event in create(**asked, tools=[walk], tool_choice=named, stream=True):
    (choice,) = event.choices
    for piece in choice.delta.tool_calls or []:
        assert piece.index == 0
        name += piece.function.name or ""
        arguments += piece.function.arguments or ""
assert choice.finish_reason == "tool_calls"
found.append([name, json.loads(arguments)])
result = {"role": "tool", "tool_call_id": called.id, "content": "ok"}
turns = [user, answer.message.model_dump(exclude_none=True), result]
assert create(**{**asked, "messages": turns, "max_tokens": 3}, tools=[walk]).usage.completion_tokens <= 3
with client.chat.completions.stream(**asked, tools=[walk], tool_choice=named) as stream:
    stream.until_done()
last = stream.get_final_completion().choices[0]
found.append([last.message.tool_calls[0].function.name, json.loads(last.message.tool_calls[0].function.arguments)])
try:
    create(**asked, response_format={**form, "json_schema": {"name": "a", "schema": {"not": {}}}})
except openai.BadRequestError as error:
    assert "Unimplemented keys" in error.message
else:
    raise AssertionError("not refused")
print(json.dumps(found))
""",
        )
    door, *calls = found
    assert door.keys() == {"open"} and isinstance(door["open"], bool)
    assert len(calls) == 3
    for name, arguments in calls:
        assert name == "walk" and arguments in ({"far": True}, {"far": False})


def test_cohere(python: str, reranker_bundle: Path) -> None:
    """As LangChain's CohereRerank, llama-index's and haystack's CohereRanker call it."""
    with serving(reranker_bundle) as server:
        found = script(
            python,
            server,
            """
import cohere
asked = dict(model="reranker", query="the cat", documents=["a mat", "sat on a mat", "day"], top_n=2)
second = cohere.ClientV2(api_key="any", base_url=f"http://{URL}").rerank(**asked, max_tokens_per_doc=4096)
first = cohere.Client(api_key="any", base_url=f"http://{URL}").rerank(**asked, return_documents=True)
assert [r.relevance_score for r in first.results] == [r.relevance_score for r in second.results]
assert [r.document.text for r in first.results] == [asked["documents"][r.index] for r in second.results]
print(json.dumps([[r.index, r.relevance_score] for r in second.results]))
""",
        )
        asked = {"query": "the cat", "texts": ["a mat", "sat on a mat", "day"], "top_n": 2}
        _, wanted = server.ask("POST", "/rerank", asked)
    assert found == [[item["index"], item["score"]] for item in wanted]


def test_kserve(python: str, server: Server, tiny_bundle: Path) -> None:
    found = script(
        python,
        server,
        """
import asyncio
from kserve import InferInput, InferRequest, InferenceRESTClient, RESTConfig
async def main():
    client = InferenceRESTClient(RESTConfig(protocol="v2", retries=0))
    base = f"http://{URL}"
    assert await client.is_server_live(base) and await client.is_server_ready(base)
    assert await client.is_model_ready(base, "tiny")
    found = []
    for binary in (True, False):
        given = InferInput("input_ids", list(IDS.shape), "INT64")
        given.set_data_from_numpy(IDS, binary_data=binary)
        answer = await client.infer(base, InferRequest("tiny", [given]), model_name="tiny")
        (output,) = [o for o in answer.outputs if o.name == "pooler_output"]
        found.append(output.as_numpy().tolist())
    return found
print(json.dumps(asyncio.run(main())))
""",
    )
    for item in found:
        np.testing.assert_allclose(item, wanted(tiny_bundle), atol=1e-5)


@pytest.mark.parametrize(
    ("bundle", "paths"),
    [
        ("tiny_bundle", "."),
        ("classifier_bundle", "^/(rerank|predict|info)$"),
        ("chatting_bundle", "/completions$"),
    ],
)
def test_schemathesis(python: str, bundle: str, paths: str, request: pytest.FixtureRequest) -> None:
    """What the OpenAPI document says, and what it doesn't, is answered as it says: by a model that embeds
    on all routes, and on theirs by one that classifies and one that generates."""
    with serving(request.getfixturevalue(bundle)) as server:
        check_schema(python, server, paths)


def check_schema(python: str, server: Server, paths: str) -> None:
    """Runs schemathesis against a server, with the paths that match."""
    command = [
        str(Path(python).with_name("schemathesis")),
        "run",
        f"http://127.0.0.1:{server.port}/openapi.json",
        "--checks=not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance",
        f"--include-path-regex={paths}",
        "--max-examples=25",
        "--seed=1",
        "--phases=examples,coverage,fuzzing",
    ]
    environment = {**os.environ, "NO_PROXY": "*", "NO_COLOR": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=Path(python).parents[1]
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert server.ask("GET", "/v2/health/ready")[0] == 200


@pytest.mark.parametrize("http", ["httptools", "h11"])
def test_java(http: str, tiny_bundle: Path) -> None:
    """Small and large bodies, with a length and in chunks, with and without a question first."""
    need("javac", "openjdk-17-jdk-headless")  # a source file alone is run by the compiler
    java = need("java", "openjdk-17-jdk-headless")
    program = Path(__file__).with_name("Upgrades.java")
    server = Served(tiny_bundle, http, limits=Limits())
    try:
        command = [java, str(program), f"http://127.0.0.1:{server.port}", server.model.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        server.close()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["200 HTTP_1_1"] * 18
