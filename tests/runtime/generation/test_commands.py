"""The commands of a generative bundle: info, selftest, generate, bench; see test_session.py."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import (
    Model,
    open_bundle,
    open_tokenizer,
)
from edgecompile.runtime.__main__ import main
from edgecompile.runtime.base.errors import InputError, TokenizerError
from edgecompile.runtime.commands.selftest import run_selftest
from edgecompile.runtime.format.manifest.schema import Tolerance
from edgecompile.runtime.generation.golden import _Judge
from edgecompile.runtime.text.session import TextSession
from edgecompile.runtime.text.stream import TextStream
from tests.generative import put_chat, put_words, replace_files

pytest.importorskip("torch")
from tests.factories import decoder as d


# --- Commands
def test_info_tells_of_it(decoder_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(decoder_bundle)]) == 0
    assert (
        "generates 192 tokens of context, 4 caches of 0.0 MB, ends with 7"
        in capsys.readouterr().out
    )


def test_texts_alone_are_for_other_models(
    decoder_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = put_words(decoder_bundle, tmp_path / "copy.ecb")
    assert main(["encode", str(copy), "--text", "w1"]) == 13
    told = capsys.readouterr().err
    assert "it generates text\nhint: use generate, chat or transcribe" in told


def test_without_a_command_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    told = capsys.readouterr()
    assert "Talk to a language model" in told.err and not told.out


def test_the_self_test_replays_golden_generations(decoder_bundle: Path) -> None:
    report = run_selftest(str(decoder_bundle), threads=1)
    assert report["ok"] and len(report["generation"]) == 5
    assert all(item["ok"] and item["tokens"] == 12 for item in report["generation"])


def spoilt(bundle: Path, folder: Path, spoil: Any) -> Path:
    """A copy of the bundle whose golden/generation.json was changed."""

    copy = folder / "copy.ecb"
    shutil.copytree(bundle, copy, copy_function=os.link)
    golden = json.loads((copy / "golden/generation.json").read_bytes())
    document = json.loads((copy / "manifest.json").read_bytes())
    spoil(golden, document)
    files = {"golden/generation.json": json.dumps(golden).encode()}
    replace_files(copy, document, files if golden else {})
    return copy


def test_the_self_test_fails_for_another_token(decoder_bundle: Path, tmp_path: Path) -> None:
    def spoil(golden: Any, document: Any) -> None:
        tokens = golden["cases"][3]["tokens"]
        tokens[8] = (tokens[8] + 1) % d.VOCABULARY

    report = run_selftest(str(spoilt(decoder_bundle, tmp_path, spoil)), threads=1)
    assert not report["ok"] and report["failed"] == 0
    assert [item["ok"] for item in report["generation"]] == [True, True, True, False, True]
    assert report["generation"][3]["error"].startswith("token 8 is ")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("want", [0, 1])
def test_logits_that_are_no_numbers_agree_with_no_token(value: float, want: int) -> None:
    judge = _Judge((1, want), Tolerance(1e-3, 1e-3))
    judge.choose(np.array([1, 2, 0], np.float32))
    assert judge.error is None
    judge.choose(np.array([value, 2, 0], np.float32))
    assert judge.error == f"token 1: the largest logit is {value}" and judge.ties == 0


def test_a_near_tie_within_eagers_own_error_is_no_error() -> None:
    logits = np.array([1.0, 10.0, 9.99], np.float32)
    judged = []
    for margin in (0.0, 1e-3, 2e-3):
        judge = _Judge((2,), Tolerance(1e-6, 2e-5), margin)
        assert judge.choose(logits) == 2
        judged.append((judge.ties, judge.error is None))
    # The gap is 0.01, of a largest logit of 10.
    assert judged == [(0, False), (1, True), (1, True)]


@pytest.mark.parametrize(("gap", "agrees"), [(1.9, True), (2.1, False)])
def test_each_of_two_logits_may_differ_by_the_tolerance(gap: float, agrees: bool) -> None:
    """The golden token's is less by one, and the other's is more by one."""
    judge = _Judge((0,), Tolerance(0.0, 0.1))
    judge.choose(np.array([10.0 - gap, 10.0, 0.0], np.float32))
    assert (judge.error is None) == agrees


def test_the_share_for_near_ties_is_read_with_the_texts(
    decoder_bundle: Path, tmp_path: Path
) -> None:
    def with_margin(value: Any) -> Any:
        def change(golden: Any, document: Any) -> None:
            golden["margin"] = value

        return change

    report = run_selftest(str(spoilt(decoder_bundle, tmp_path / "a", with_margin(1e-3))), threads=1)
    assert report["ok"]
    report = run_selftest(str(spoilt(decoder_bundle, tmp_path / "b", with_margin(7))), threads=1)
    assert "must be 0 to 1" in report["generation"][0]["error"]


def test_the_self_test_fails_without_golden_generations(
    decoder_bundle: Path, tmp_path: Path
) -> None:
    def spoil(golden: Any, document: Any) -> None:
        golden.clear()
        del document["files"]["golden/generation.json"]

    folder = spoilt(decoder_bundle, tmp_path, spoil)
    (folder / "golden" / "generation.json").unlink()  # what isn't listed would be refused
    report = run_selftest(str(folder), threads=1)
    assert not report["ok"]
    assert report["generation"][0]["error"] == "the bundle has no golden/generation.json"


def test_the_command_generates_without_torch(
    decoder_bundle: Path, device_python: str, tmp_path: Path, model: Model
) -> None:
    (tmp_path / "ids.txt").write_text("1, 2 3\n\n1 2 3 4\n")
    command = [device_python, "-m", "edgecompile.runtime", "generate", str(decoder_bundle)]
    command += ["--ids-file", "ids.txt", "--max-new-tokens", "6", "--ignore-eos", "--threads", "1"]
    environment = {**os.environ, "PYTHONPATH": str(decoder_bundle / "runtime")}
    done = subprocess.run(
        [*command, "--json"], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    want = [model.generate(ids, max_new_tokens=6, eos=()) for ids in ([1, 2, 3], [1, 2, 3, 4])]
    assert [text["tokens"] for text in report["texts"]] == want
    assert [text["reused"] for text in report["texts"]] == [0, 3]
    assert {text["finish_reason"] for text in report["texts"]} == {"length"}


def test_the_command_shows_tokens_as_they_come(
    decoder_bundle: Path, capsys: pytest.CaptureFixture[str], model: Model
) -> None:
    want = model.generate([1, 2, 3], max_new_tokens=6, temperature=2.0, seed=4, eos=())
    arguments = ["generate", str(decoder_bundle), "--ids", "1,2,3", "--max-new-tokens", "6"]
    arguments += ["--temperature", "2", "--seed", "4", "--ignore-eos"]
    assert main(arguments) == 0
    told = capsys.readouterr()
    assert told.out == " ".join(str(token) for token in want) + "\n"
    wanted = (
        "text 0: 6 new tokens after a prompt of 3 (0 cached), stopped by --max-new-tokens; first"
    )
    assert wanted in told.err


@pytest.fixture
def text_bundle(decoder_bundle: Path, tmp_path: Path) -> Path:
    """The decoder's bundle with a tokenizer of a word per token."""
    pytest.importorskip("tokenizers")
    return put_words(decoder_bundle, tmp_path / "text.ecb")


def test_the_command_takes_texts_and_gives_texts(
    text_bundle: Path, capsys: pytest.CaptureFixture[str], model: Model
) -> None:
    with open_bundle(text_bundle, warmup=False) as opened:
        tokenizer = open_tokenizer(opened)
    ids = tokenizer.encode("the cat sat").ids
    tokens = model.generate(ids, max_new_tokens=8, eos=())
    want = " " + tokenizer.decode(tokens)  # it follows the prompt
    arguments = ["generate", str(text_bundle), "--text", "the cat sat", "--ignore-eos"]
    arguments += ["--max-new-tokens", "8"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == want + "\n"
    assert main([*arguments, "--text", "on the mat", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["texts"][0]["text"] == want and report["texts"][0]["tokens"] == tokens
    assert len(report["texts"]) == 2

    stop = tokenizer.decode(tokens[:3]).split()[-1]
    assert main([*arguments, "--stop-text", stop]) == 0
    told = capsys.readouterr()
    assert told.out[:-1] == want.partition(stop)[0]
    assert "stopped by --stop" in told.err


@pytest.fixture
def chat_bundle(text_bundle: Path) -> Path:
    """The same with a chat template, as data alone: its program would fail."""
    put_chat(text_bundle)
    return text_bundle


def test_a_model_completes_texts_and_answers_chats(chat_bundle: Path) -> None:
    with open_bundle(chat_bundle, warmup=False) as model:
        tokenizer = open_tokenizer(model)
        ids = tokenizer.encode("the cat sat").ids
        tokens = model.generate(ids, max_new_tokens=8, eos=())
        pieces: list[str] = []
        text = model.complete("the cat sat", max_new_tokens=8, eos=(), on_text=pieces.append)
        assert text == "".join(pieces) == " " + tokenizer.decode(tokens) and len(pieces) == 8
        message = {"role": "user", "content": " cat "}
        assert model.chat([message], max_new_tokens=8, eos=()) == text
        stream = model.stream_text([message], max_new_tokens=8, eos=())
        assert next(stream) == pieces[0] and stream.finish_reason is None
        stream.close()
        assert list(stream) == [] and stream.finish_reason == "closed"
        cut = model.complete("the cat sat", max_new_tokens=8, eos=(), on_text=lambda _: False)
        assert cut == pieces[0]
        loose: Any = model
        runs = model.stats["runs"]
        for wrong, told in (
            (lambda: loose.complete("the", on_text=3), "on_text is a int, must be a function"),
            (lambda: loose.chat([message], on_text="x"), "on_text is a str, must be a function"),
            (lambda: loose.complete(b"the"), "text is a bytes, must be a string"),
            (lambda: loose.complete([message]), "text is a list, must be a string"),
            (lambda: loose.chat("the"), "messages is a str, must be a list of messages"),
            (lambda: loose.chat(message), "the prompt is a dict, must be a string or a list"),
            (lambda: loose.stream_text(b""), "the prompt is a bytes, must be a string or a list"),
            (lambda: loose.chat([]), "a chat needs messages"),
        ):
            with pytest.raises(InputError, match=told):
                wrong()
        assert model.stats["runs"] == runs
        stop = pieces[3].strip()
        assert model.chat([message], stop_text=[stop], eos=()) == text.partition(stop)[0]
        whole = model.stream_text("the cat", eos=())
        assert "".join(whole) == whole.text
        assert len(whole.tokens.tokens) == 30  # the default of the bundle
        # A session runs only what is new.
        session = model.session()
        answer = session.chat([message], max_new_tokens=3, eos=())
        further = [
            message,
            {"role": "assistant", "content": answer},
            {"role": "user", "content": "mat"},
        ]
        stream = session.stream_text(further, max_new_tokens=3, eos=())
        assert "".join(stream) == model.chat(further, max_new_tokens=3, eos=())
        assert stream.tokens.reused >= 3
        for bad, wanted in (
            ([], "needs messages"),
            ([1], "needs messages"),
            ("\ud800", "surrogate"),
        ):
            with pytest.raises(InputError, match=wanted):
                model.stream_text(bad)  # type: ignore[arg-type]
        with pytest.raises(TokenizerError, match="fails on these messages: ZeroDivisionError"):
            model.chat([{"role": "tool", "content": "x"}])


def test_the_command_chats(
    chat_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("cat\n\nmat\n"))
    assert main(["chat", str(chat_bundle), "--system", "the", "--max-new-tokens", "4"]) == 0
    told = capsys.readouterr()
    with open_bundle(chat_bundle, warmup=False) as model:
        messages = [{"role": "system", "content": "the"}, {"role": "user", "content": "cat"}]
        first = model.chat(messages, max_new_tokens=4)
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "mat"}]
        second = model.chat(messages, max_new_tokens=4)
    assert told.out == first + "\n" + second + "\n"
    assert told.err.startswith("answers: 2, tokens: ")
    monkeypatch.setattr("sys.stdin", io.StringIO("cat\n"))
    assert (
        main(["chat", str(chat_bundle), "--system", "the", "--max-new-tokens", "4", "--json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["messages"] == messages[:3]
    assert report["answers"][0]["prompt_tokens"] == 5


def test_a_chat_goes_on_from_a_file(
    chat_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = str(tmp_path / "talk.session")

    def talk(lines: str, *arguments: str) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO(lines))
        command = ["chat", str(chat_bundle), "--max-new-tokens", "4", *arguments, "--json"]
        return main(command), json.loads(capsys.readouterr().out)

    code, whole = talk("cat\nmat\n", "--system", "the")
    assert code == 0
    assert talk("cat\n", "--system", "the", "--save", file)[0] == 0
    code, second = talk("mat\n", "--load", file, "--save", file)
    assert code == 0 and second["messages"] == whole["messages"]
    assert second["answers"][0]["reused"] == whole["answers"][1]["reused"] > 0
    # A message that finds no room is an error; what was said before is kept.
    code, _ = talk("the " * 300 + "\n", "--load", file, "--save", file)
    assert code == 16
    code, third = talk("", "--load", file)
    assert code == 0 and third["messages"] == whole["messages"]

    # Where that fails, too, it hides nothing.
    with monkeypatch.context() as patch:
        patch.setattr(TextSession, "save", _refuse_to_save)
        code, failed = talk("the " * 300 + "\n", "--load", file, "--save", file)
    message = failed["error"]["message"]
    assert code == 16 and "tokens" in message
    assert message.endswith("; the conversation is lost, too: no space left")
    code, failed = talk("", "--load", file, "--system", "the")
    assert code == 24 and "--load and --system don't go together" in failed["error"]["message"]
    code, failed = talk("cat\n", "--save", str(tmp_path / "none" / "x"))
    assert code == 24 and "doesn't exist" in failed["error"]["message"]
    with open_bundle(chat_bundle, warmup=False) as model:
        for notes in (None, {}, {"messages": [{"role": "user"}]}, {"messages": "x"}, ["x"]):
            model.session().save(file, notes)
            code, failed = talk("cat\n", "--load", file)
            assert code == 24
            assert "holds no conversation of this command" in failed["error"]["message"]


def _refuse_to_save(self: TextSession, path: str, notes: object) -> None:
    raise InputError("no space left")


def test_an_empty_answer_is_left_out_of_the_chat(
    chat_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template has no way to write it, or another one than its turns."""
    monkeypatch.setattr(TextStream, "read", lambda self, token: "")
    monkeypatch.setattr("sys.stdin", io.StringIO("cat\nmat\n"))
    assert main(["chat", str(chat_bundle), "--max-new-tokens", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["messages"] == [] and len(report["answers"]) == 2


def test_a_chat_needs_a_template(
    text_bundle: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("cat\n"))
    assert main(["chat", str(text_bundle)]) == TokenizerError.exit_code
    assert "holds no chat template" in capsys.readouterr().err


def test_texts_need_a_tokenizer(decoder_bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", str(decoder_bundle), "--text", "the cat"]) == 13
    told = capsys.readouterr().err
    assert "holds no tokenizer" in told and "--ids" in told


def test_a_model_says_what_it_is(decoder_bundle: Path) -> None:
    with open_bundle(decoder_bundle, warmup=False) as model:
        text = f"<Model {model.manifest.name} fp32 {model.info['variant']}, length 1..32, context "
        assert repr(model).startswith(text) and repr(model).endswith(">")
    assert repr(model).endswith(", closed>")


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ([], 24, "give prompts as one of --text, --ids and --ids-file"),
        (["--ids", "1", "--ids-file", "x"], 24, "one of --text, --ids and --ids-file"),
        (["--ids", "1", "--text", "x"], 24, "one of --text, --ids and --ids-file"),
        (["--ids", "1,x"], 24, "--ids: must be token ids, such as 1,2,3; found 'x'"),
        (["--ids", ""], 24, "--ids: must be token ids, such as 1,2,3; found none"),
        (["--ids-file", "/none/such"], 24, "/none/such: can't be read"),
        (["--ids", "99"], 24, "lie outside 0..60"),
        (["--ids", "1", "--stop", "-"], 24, "--stop: must be token ids"),
        (["--ids", "1", "--max-new-tokens", "999"], 16, "don't fit into the context of 192"),
    ],
)
def test_the_command_refuses(
    decoder_bundle: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    text: str,
) -> None:
    assert main(["generate", str(decoder_bundle), *arguments]) == code
    assert text in capsys.readouterr().err


def test_bench_and_calibration_run_such_a_bundle(decoder_bundle: Path, tmp_path: Path) -> None:
    """Inputs for measurements keep to the rows, at whatever sizes."""
    file = tmp_path / "calibration.json"
    arguments = [str(decoder_bundle), "--seconds", "0.1", "--cold-runs", "0", "--json"]
    command = [sys.executable, "-m", "edgecompile.runtime", "bench", *arguments]
    (tmp_path / "lengths.txt").write_text("1\n2\n31\n32\n")
    for more in (["--calibrate", str(file)], ["--lengths", str(tmp_path / "lengths.txt")]):
        environment = {**os.environ, "PYTHONPATH": str(decoder_bundle / "runtime")}
        done = subprocess.run(
            [*command, *more], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert {point["bucket"] for point in json.loads(file.read_bytes())["points"]} == {0, 1, 2}


def test_the_commands_obey_a_schema_or_an_expression(
    bytewise_bundle: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("llguidance")
    schema, bundle = tmp_path / "schema.json", str(bytewise_bundle)
    schema.write_text(json.dumps({"enum": ["red", "green"]}))
    rule = ["--json-schema", str(schema)]

    def generate(*arguments: str) -> Any:
        assert main(["generate", bundle, *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)["texts"]

    texts = generate("--text", "a", "--text", "ab", *rule)
    assert len(texts) == 2 and {text["text"] for text in texts} <= {'"red"', '"green"'}
    assert {text["finish_reason"] for text in texts} == {"constraint"}
    (text,) = generate("--ids", "1,2", "--regex", "ab{3}c")
    with open_bundle(bundle, warmup=False) as model:
        assert open_tokenizer(model).decode(text["tokens"]) == "abbbc"
    assert main(["generate", bundle, "--text", "a", "--regex", "(yes|no)"]) == 0
    told = capsys.readouterr()
    assert (
        told.out in ("yes\n", "no\n")
        and "tokens after a prompt of 1 (0 cached), complete" in told.err
    )
    monkeypatch.setattr("sys.stdin", io.StringIO("a\nb\n"))
    assert main(["chat", bundle, *rule, "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)["messages"][1::2]
    assert len(answers) == 2 and {answer["content"] for answer in answers} <= {'"red"', '"green"'}
    (tmp_path / "bytes").write_bytes(b"\xff")
    for wrong, message in (
        ([*rule, "--regex", "a"], "--json-schema and --regex don't go together"),
        (["--json-schema", str(tmp_path / "none")], "none: can't be read: No such file"),
        (["--json-schema", str(tmp_path / "bytes")], "isn't text in UTF-8"),
        (["--regex", "("], "regex can't be used"),
    ):
        for command in (["generate", bundle, "--text", "a"], ["chat", bundle]):
            monkeypatch.setattr("sys.stdin", io.StringIO("a\n"))
            assert main([*command, *wrong]) in (10, 24)
            assert message in capsys.readouterr().err
