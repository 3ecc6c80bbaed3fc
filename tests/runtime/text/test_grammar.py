"""Texts by JSON schemas, regular expressions and Lark's rules, made by a small model and judged here."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgecompile.runtime import ConstraintError, Model, TokenizerError, open_bundle
from edgecompile.runtime.text import grammar as module
from edgecompile.runtime.text.grammar import Grammars, make_grammar
from edgecompile.runtime.text.schema_limits import MAX_LEVELS, MAX_NESTED
from edgecompile.runtime.text.tools import ToolFormat
from tests.bytewise import CALL, make_tokenizer
from tests.generative import EOS

pytest.importorskip("torch")
pytest.importorskip("llguidance")

PROMPTS = 200
NAMES = ["name", "id", "size", "tags", "open", "kind"]


@pytest.fixture(scope="module")
def model(bytewise_bundle: Path) -> Iterator[Model]:
    with open_bundle(bytewise_bundle, threads=1) as opened:
        yield opened


def draw_schema(random: random.Random, level: int = 0) -> dict[str, Any]:
    """A schema of texts that aren't long."""
    kinds = ["boolean", "integer", "string", "pattern", "enum", "null", "anyOf"]
    kind = random.choice(
        kinds + (["object", "array"] if level < 2 else []) if level else ["object"]
    )
    if kind == "object":
        names = random.sample(NAMES, random.randint(1, 3))
        return {
            "type": "object",
            "properties": {name: draw_schema(random, level + 1) for name in names},
            "required": names[: random.randint(1, len(names))],
            "additionalProperties": False,
        }
    if kind == "array":
        least = random.randint(0, 1)
        items = draw_schema(random, 2)
        return {"type": "array", "items": items, "minItems": least, "maxItems": least + 1}
    if kind == "anyOf":
        return {"anyOf": [draw_schema(random, 3) for _ in range(2)]}
    most = random.randint(1, 9)
    return {
        "boolean": {"type": "boolean"},
        "null": {"type": "null"},
        "integer": {"type": "integer", "minimum": -most, "maximum": 10 * most},
        "string": {"type": "string", "minLength": 1, "maxLength": most},
        "pattern": {"type": "string", "pattern": "^[a-c]{2}-[0-9]{1,3}$"},
        "enum": {"enum": ["red", "green", most, None, [1, "a"]]},
    }[kind]


def check(value: Any, schema: dict[str, Any]) -> None:
    """That a value is what a schema says, of those that are drawn."""
    if "anyOf" in schema:
        errors = 0
        for choice in schema["anyOf"]:
            try:
                check(value, choice)
            except AssertionError:
                errors += 1
        assert errors < len(schema["anyOf"])
        return
    if "enum" in schema:
        assert value in schema["enum"]
        return
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    assert type(value) is kinds.get(schema["type"], type(None)), (value, schema)
    if isinstance(value, dict):
        assert set(schema["required"]) <= value.keys() <= schema["properties"].keys()
        for name, inner in value.items():
            check(inner, schema["properties"][name])
    elif isinstance(value, list):
        assert schema["minItems"] <= len(value) <= schema["maxItems"]
        for inner in value:
            check(inner, schema["items"])
    elif isinstance(value, str):
        assert schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 99)
        assert re.search(schema.get("pattern", ""), value)
    elif type(value) is int:
        assert schema["minimum"] <= value <= schema["maximum"]


def test_texts_of_many_prompts_are_what_their_schemas_say(model: Model) -> None:
    """All of them: chosen as the likeliest tokens and drawn, in one session and alone."""
    drawn, session = random.Random(0), model.session()
    steps = new = 0
    for number in range(PROMPTS):
        schema = draw_schema(drawn)
        prompt = "".join(drawn.choices('abcdef 012{}":', k=drawn.randint(1, 12)))
        options = {"temperature": 2.0, "seed": number} if number % 2 else {}
        maker = session if number % 3 else model
        before = model.stats["runs"]
        stream = maker.stream_text(
            prompt,
            constraint=model.make_constraint(json_schema=schema),
            max_new_tokens=170,
            **options,
        )
        text = "".join(stream)
        assert stream.finish_reason in ("constraint", "eos"), (schema, text)
        check(json.loads(text), schema)
        assert not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", text))
        steps += model.stats["runs"] - before
        new += len(stream.tokens.tokens)
    assert steps < 0.8 * new, "forced tokens cost no run"


@pytest.mark.parametrize(
    ("grammar", "expression"),
    [
        ({"regex": "[a-c]{3}-[0-9]{2}"}, "[a-c]{3}-[0-9]{2}"),
        ({"regex": "(yes|no)"}, "yes|no"),
        ({"lark": 'start: WORD "," WORD\nWORD: /[a-f]{1,5}/'}, "[a-f]{1,5},[a-f]{1,5}"),
        ({"json_schema": '{"const": "it"}'}, '"it"'),
        ({"json_schema": {"enum": [True, "a b"]}}, 'true|"a b"'),
        (
            {"json_schema": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "boolean"}}}},
            "true|false",
        ),
    ],
    ids=str,
)
def test_grammars(model: Model, grammar: dict[str, Any], expression: str) -> None:
    for seed in range(5):
        constraint = model.make_constraint(**grammar)
        text = model.complete("a", constraint=constraint, temperature=3.0, seed=seed)
        assert re.fullmatch(expression, text)


def test_texts_are_those_of_whole_heads(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the likeliest tokens and of drawn ones: a run that leaves out panels of the head changes none."""
    drawn = random.Random(7)
    grammars = [{"json_schema": draw_schema(drawn)} for _ in range(12)]
    grammars += [{"regex": "[a-c]{3}-[0-9]{2}"}, {"regex": '(yes|no|[{}":]{9})'}]

    def write() -> list[str]:
        texts = []
        for number, grammar in enumerate(grammars):
            options = {"temperature": 2.0, "seed": number} if number % 2 else {}
            made = {"constraint": model.make_constraint(**grammar), "max_new_tokens": 120}
            texts.append("".join(model.stream_text("abc", **made, **options)))
        return texts

    assert model.masks_logits
    masked = write()
    monkeypatch.setattr(model._runtime, "_lacks", {"ec_program_run_masked"})
    assert not model.masks_logits
    assert write() == masked


def test_a_text_may_end_where_the_grammar_lets_it(model: Model) -> None:
    """At a token of eos, which the grammar allows there and nowhere before."""
    found = set()
    for seed in range(20):
        constraint = model.make_constraint(regex="a{3,90}")
        stream = model.stream_text("a", constraint=constraint, temperature=9.0, seed=seed)
        assert re.fullmatch("a{3,90}", "".join(stream))
        found.add(stream.finish_reason)
        assert (stream.tokens.tokens[-1] == EOS) == (stream.finish_reason == "eos")
    assert "eos" in found
    # Where nothing ends it, max_new_tokens does.
    stream = model.stream_text(
        "a", constraint=model.make_constraint(regex="a+"), eos=(), max_new_tokens=5, stop=[7]
    )
    assert len(list(stream)) <= 5 and stream.finish_reason in ("stop", "length")


def test_a_chat_is_constrained(model: Model) -> None:
    messages = [{"role": "user", "content": "hi"}]
    constraint = model.make_constraint(json_schema={"type": "boolean"})
    assert model.chat(messages, constraint=constraint) in ("true", "false")


def chain(count: int, link: dict[str, Any], place: str) -> dict[str, Any]:
    """A schema in which each definition refers to the next one, ``place`` in its text."""
    text = json.dumps(link)
    names = {f"a{i}": json.loads(text.replace(place, f"#/$defs/a{i + 1}")) for i in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**names, f"a{count}": {"type": "null"}}}


def nested(levels: int) -> Any:
    value: Any = {"type": "null"}
    for _ in range(levels):
        value = {"items": value}
    return value


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "not none of them"),
    ({"regex": "a", "lark": "b"}, "not regex and lark"),
    ({"json_schema": "{"}, "json_schema isn't JSON"),
    ({"json_schema": "[" * 5000}, "json_schema isn't JSON"),
    ({"json_schema": "3"}, "json_schema is a int, must be an object"),
    ({"json_schema": []}, "json_schema is a list, must be an object"),
    ({"json_schema": {"const": float("nan")}}, "can't be written as JSON"),
    ({"json_schema": {"const": object()}}, "can't be written as JSON"),
    ({"json_schema": {"const": "\ud800"}}, "half of a surrogate pair"),
    ({"json_schema": {"type": "strin"}}, "json_schema can't be used: .*strin"),
    ({"json_schema": False}, "json_schema can't be used: Unsatisfiable"),
    ({"json_schema": {"enum": []}}, "json_schema can't be used: Unsatisfiable"),
    ({"json_schema": {"not": {"type": "null"}}}, 'can\'t be used: Unimplemented keys: ."not".'),
    ({"json_schema": {"uniqueItems": True}}, "uniqueItems"),
    ({"json_schema": {"$ref": "#/none"}}, "json_schema can't be used: .*none"),
    ({"json_schema": {"$ref": "file:///etc/passwd"}}, "json_schema can't be used"),
    ({"json_schema": {"$ref": "http://127.0.0.1:9/x"}}, "json_schema can't be used"),
    ({"json_schema": {"pattern": "("}}, "unclosed group"),
    ({"json_schema": {"pattern": "(?=a)b"}}, "look-around"),
    ({"json_schema": {"enum": ["x" * 70_000]}}, "70014 bytes, the limit is 65536"),
    ({"json_schema": nested(MAX_NESTED + 1)}, f"the limit is {MAX_NESTED}"),
    ({"json_schema": chain(700, {"$ref": "NEXT"}, "NEXT")}, f"over {MAX_LEVELS} levels"),
    ({"json_schema": {"allOf": [{"$ref": f"#/a/{i}"} for i in range(9999)]}}, "the limit is 65536"),
    ({"regex": 3}, "regex is a int, must be a text"),
    ({"regex": "("}, "regex can't be used"),
    ({"regex": "a" * 4097}, "regex has 4097 bytes, the limit is 4096"),
    ({"regex": "(" * 2000 + ")" * 2000}, "regex can't be used"),
    ({"lark": "none"}, "lark can't be used"),
    ({"lark": "start: other"}, "lark can't be used"),
    ({"lark": "start: " + "(" * 20_000}, "lark can't be used: .*deeply nested"),
    ({"lark": "\n" * 500}, "lark has 501 lines, the limit is 500"),
]


@pytest.mark.parametrize(("grammar", "text"), BAD, ids=[item[1][:30] for item in BAD])
def test_bad_grammars_are_refused(model: Model, grammar: dict[str, Any], text: str) -> None:
    with pytest.raises(ConstraintError, match=text) as caught:
        model.make_constraint(**grammar)
    assert len(caught.value.message) < 600 and "<" not in caught.value.message


HUGE = {"type": "integer", "multipleOf": 9_999_999}
#: Each would take minutes and all memory: a state for every residue.
MULTIPLES: list[dict[str, Any]] = [
    HUGE,
    {"multipleOf": 1e300},
    {"multipleOf": 9973.01},
    {"properties": {"multipleOf": {"items": [{"oneOf": [HUGE]}]}}},
    {"properties": {"enum": HUGE}},
    {"patternProperties": {"const": HUGE}},
    {"$ref": "#/default", "default": HUGE},
    {"$ref": "#/%64efault", "default": HUGE},
    {"$ref": "#/properties", "properties": {"properties": {"enum": HUGE}}},
    {"$ref": "http://a/b#/enum/0", "$defs": {"a": {"$id": "http://a/b", "enum": [HUGE]}}},
    {"allOf": [{"multipleOf": 101}, {"multipleOf": 103}]},
    {"anyOf": [{"multipleOf": n} for n in (7, 11, 13, 17)]},
    {"prefixItems": [{"multipleOf": 999, "minimum": n} for n in range(300)]},
]


@pytest.mark.parametrize("schema", MULTIPLES, ids=range(len(MULTIPLES)))
def test_multiples_of_too_many_residues_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(ConstraintError, match=r"multipleOf.* is over (10000|200000), the limit"):
        make_grammar(json_schema=schema)
    form, grammars = ToolFormat("", "", "arguments", (",", ":")), Grammars(make_tokenizer(), 61, [])
    with pytest.raises(ConstraintError, match="multipleOf"):
        grammars.make_call(form, {"a": {}, "b": {**schema, "type": "object"}})


def test_multiples_of_all_tools_together_are_bounded() -> None:
    form, grammars = ToolFormat("", "", "arguments", (",", ":")), Grammars(make_tokenizer(), 61, [])
    tools = {f"a{n}": {"properties": {"a": {"multipleOf": n}}} for n in (101, 103)}
    with pytest.raises(ConstraintError, match="a call of these tools: with multipleOf 101"):
        grammars.make_call(form, tools)


def test_multiples_of_few_residues_are_taken(model: Model) -> None:
    for schema in (
        {"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 99},
        {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9},
        {"const": 1, "default": HUGE},
        {"properties": {"multipleOf": {"type": "integer", "multipleOf": 1000}}},
        {"type": "array", "prefixItems": [{"multipleOf": 0.01, "minimum": n} for n in range(300)]},
    ):
        model.make_constraint(json_schema=schema)


def test_references_are_followed_once() -> None:
    """Many to one large target, and many that aren't there, cost no more than a walk."""
    part = {"allOf": [{"enum": [1]}] * 2000}
    many = {"$defs": {"a": part}, "anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a/x"}] * 500}
    assert make_grammar(json_schema=many)
    shallow = {"anyOf": [{"$ref": f"#/x/{n}"} for n in range(2000)]}
    with pytest.raises(ConstraintError, match="2000 references"):
        make_grammar(json_schema=shallow)


def test_choices_are_bounded_and_written_with_any_characters(model: Model) -> None:
    for text in ("\x7f", "\x00", "\x1f", "\x85", "\u2028", '\\"', "a\x7fb"):
        made = make_grammar(choice=["yes", text])
        constraint = model._prompts().grammars.make(made)
        assert model.complete("a", constraint=constraint) in ("yes", text)
    with pytest.raises(ConstraintError, match="choice has 2001 texts, the limit is 2000"):
        make_grammar(choice=["a"] * 2001)
    with pytest.raises(ConstraintError, match="choice has 70009 bytes, the limit is 65536"):
        make_grammar(choice=["a" * 70_000])


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"not": {}}, "'b' can't be used: Unimplemented keys"),
        ({"$ref": "#/none"}, "'b' can't be used: Pointer '/none' does not exist"),
        ({"properties": {"a": {"pattern": "("}}}, "'b' can't be used: .*unclosed group"),
        ({"type": "string"}, "'b' has the type .string., must have the type object"),
        ({"type": ["null", "array"]}, "'b' has the type"),
        ({"$ref": "json-schema:///#/$defs/tool0"}, "'b' refers to another document"),
        ({"items": {"$id": "x"}}, "'b' has an .id within"),
        ({"description": "x" * 40_000}, "these tools have 80"),
        ({"description": "x" * 70_000}, "'b' has 70"),
    ],
    ids=str,
)
def test_the_tool_at_fault_is_named(schema: dict[str, Any], text: str) -> None:
    form, grammars = ToolFormat("", "", "arguments", (",", ":")), Grammars(make_tokenizer(), 61, [])
    with pytest.raises(ConstraintError, match=text) as caught:
        grammars.make_call(form, {"a": {"description": "x" * 40_000}, "b": schema})
    assert "%json" not in caught.value.message and "tool1" not in caught.value.message


def test_many_tools_of_nested_arrays_are_taken() -> None:
    form, grammars = ToolFormat("", "", "arguments", (",", ":")), Grammars(make_tokenizer(), 61, [])
    rows = {"type": "array", "items": {"type": "array", "items": {"$ref": "#/$defs/one"}}}
    tool = {"properties": {"a": rows}, "$defs": {"one": {"type": "integer"}}}
    assert grammars.make_call(form, {f"a{n}": tool for n in range(100)}).mask().any()
    deep = chain(700, {"$ref": "NEXT"}, "NEXT")
    with pytest.raises(ConstraintError, match=f"tool 'b' has 701 references, of over {MAX_LEVELS}"):
        grammars.make_call(form, {"a": {}, "b": deep})


LINKS = [
    {"$ref": "NEXT"},
    {"allOf": [{"$ref": "NEXT"}]},
    {"properties": {"a": {"$ref": "NEXT"}}, "required": ["a"]},
    {"properties": {"a": {"anyOf": [{"type": "array", "items": {"$ref": "NEXT"}}]}}},
    {"patternProperties": {"^a": {"additionalProperties": {"oneOf": [{"$ref": "NEXT"}]}}}},
]


@pytest.mark.parametrize("link", LINKS, ids=lambda link: next(iter(link)))
def test_the_longest_chains_that_are_taken_end_no_process(
    model: Model, link: dict[str, Any]
) -> None:
    """llguidance follows them by recursion. A thread has less of a stack than some processes."""
    levels = json.dumps(link).count("{") + json.dumps(link).count("[")
    count = MAX_LEVELS // (levels + 1) - 8
    taken: list[Any] = []

    def run() -> None:
        try:
            taken.append(model.make_constraint(json_schema=chain(count, link, "NEXT")).mask())
        except ConstraintError as error:
            assert "levels" not in error.message
            taken.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(taken) == 1


def test_references_in_a_circle_are_followed(model: Model) -> None:
    tree = {
        "type": "object",
        "properties": {"id": {"enum": [1]}, "tags": {"type": "array", "items": {"$ref": "#"}}},
        "required": ["id"],
        "additionalProperties": False,
    }
    text = model.complete("a", constraint=model.make_constraint(json_schema=tree), stop_text=["}"])
    assert text.startswith('{"id":1')


def test_a_schema_of_nothing_but_itself_is_told(model: Model) -> None:
    with pytest.raises(ConstraintError, match=r"can't be (used|followed)"):
        model.complete("a", constraint=model.make_constraint(json_schema={"$ref": "#"}))


def test_a_grammar_that_takes_too_much_is_told_within_the_text(model: Model) -> None:
    """Some of what is too much shows only as the text goes on: the session isn't harmed."""
    session = model.session()
    constraint = model.make_constraint(regex="((a{1000}){1000}){1000}")
    with pytest.raises(ConstraintError, match=r"the grammar can't be followed: .*too many"):
        session.complete("a", constraint=constraint, max_new_tokens=50)
    assert session.complete("b", max_new_tokens=5) == model.complete("b", max_new_tokens=5)


def test_a_text_that_no_tokens_can_write_is_told(model: Model) -> None:
    """The tokenizer has no capitals."""
    for schema in ({"const": "AB"}, {"enum": ["AB", "CD"]}):
        with pytest.raises(ConstraintError, match=r"no tokens that write it|can't be followed"):
            model.complete("a", constraint=model.make_constraint(json_schema=schema))


def test_a_token_that_the_grammar_does_not_allow_is_refused(model: Model) -> None:
    constraint = model.make_constraint(regex="a")
    with pytest.raises(ConstraintError, match=r"the grammar (doesn't allow|can't be followed)"):
        constraint.accept(9)


def test_models_may_have_more_or_fewer_tokens_than_their_tokenizers() -> None:
    tokenizer = make_tokenizer()
    for vocabulary in (40, 61, 64, 100):
        made = Grammars(tokenizer, vocabulary, [EOS]).make(make_grammar(regex="[a-z]{2}"))
        mask = made.mask()
        assert mask.dtype == np.uint32 and mask.shape == (-(-vocabulary // 32),)
        bits = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocabulary])
        assert bits.size and bits.max() < vocabulary


def test_literals_name_tokens_of_their_own() -> None:
    tokenizer = make_tokenizer()
    grammars = Grammars(tokenizer, 61, [EOS])
    call = tokenizer.token_to_id(CALL)
    assert grammars.write_literal(f'{CALL}\n{{"a\\": ') == f'<[{call}]> "\\n{{\\"a\\\\\\": "'
    assert grammars.write_literal(f"{CALL}{CALL}") == f"<[{call}]> <[{call}]>"
    assert grammars.write_literal("naïve") == '"naïve"'


def test_tokenizers_with_tokens_of_bytes() -> None:
    """As Llama 2's and Gemma's are: words with a sign for the space, and a token for each byte."""
    import tokenizers

    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words += ["▁", "a", "b", "n", "o", "▁b", "no", "ab"]
    merges = [("▁", "b"), ("n", "o"), ("a", "b")]
    model = tokenizers.models.BPE(
        {word: index for index, word in enumerate(words)},
        merges,
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    tokenizer = tokenizers.Tokenizer(model)
    n, d = tokenizers.normalizers, tokenizers.decoders
    tokenizer.normalizer = n.Replace(" ", "▁")
    tokenizer.decoder = d.Sequence([d.Replace("▁", " "), d.ByteFallback(), d.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    grammars, drawn = Grammars(tokenizer, len(words), [2]), random.Random(0)
    for expression in ("(ab|no) b{2}é", '[{]"[a-z ]{3,9}"[}]', "(文|😀){2}"):
        for _ in range(5):
            constraint, made = grammars.make(make_grammar(regex=expression)), list[int]()
            while not constraint.ended():
                tokens = constraint.forced()
                if not tokens:
                    bits = np.unpackbits(constraint.mask().view(np.uint8), bitorder="little")
                    tokens = [drawn.choice(np.flatnonzero(bits[: len(words)]).tolist())]
                for token in tokens:
                    constraint.accept(token)
                made += tokens
            text = tokenizer.decode([token for token in made if token != 2])
            assert re.fullmatch(expression, text)


@pytest.mark.parametrize("style", ["words", "spaces"])
def test_tokenizers_without_bytes_are_refused(style: str) -> None:
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    if style == "spaces":
        tokenizer.decoder = tokenizers.decoders.Metaspace()
    with pytest.raises(TokenizerError, match="doesn't write its tokens as bytes"):
        Grammars(tokenizer, 2, []).make(make_grammar(regex="a"))


def test_without_llguidance_its_name_is_told(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    fresh = Grammars(make_tokenizer(), 61, [EOS])
    monkeypatch.setattr(model._prompts(), "grammars", fresh)
    with pytest.raises(TokenizerError, match="the Python package llguidance, which isn't") as told:
        model.make_constraint(json_schema={})
    assert "pip install llguidance" in str(told.value.hint)
    # What is wrong with a grammar is told first, and needs no package.
    with pytest.raises(ConstraintError, match="not none"):
        model.make_constraint()


def test_a_tokenizer_that_llguidance_cannot_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_has_bytes", lambda document: True)
    import tokenizers

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    with pytest.raises(TokenizerError, match="llguidance can't use this model's tokenizer"):
        Grammars(tokenizer, 1, []).make(make_grammar(regex="a"))
