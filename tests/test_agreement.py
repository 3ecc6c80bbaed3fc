"""Agreement between the two loaders."""

from __future__ import annotations

import pytest

from tests.agreement import Verdict, agree, named_rules

OPENED = Verdict(0, frozenset())


def refused(*rules: str, status: int = 20) -> Verdict:
    return Verdict(status, frozenset(rules))


def test_rules_are_named_with_the_section_that_they_are_about() -> None:
    assert named_rules("/b.ecb/manifest.json: text.inputs: must be [key-type]") == {"text:key-type"}
    assert named_rules(
        "manifest.json: 3 problems\n  inputs[0].text: is required [key-missing]"
        "\v  generation: text.x: 'y' isn't an input [generation-inputs]\n  golden[2].file: [path-listed]"
    ) == {"key-missing", "generation:generation-inputs", "golden:path-listed"}


@pytest.mark.parametrize(
    ("python", "c"),
    [
        (OPENED, OPENED),
        (refused("key-type"), refused("key-type")),
        (refused("text:key-type"), OPENED),
        (refused("golden:path-listed"), refused("file-kind", status=22)),
        (refused("generation:key-type"), refused("generation:key-type")),
        (refused("generation:generation-tokens"), refused("program-signature")),
        (refused("golden:key-type"), refused("generation:generation-shape")),
        (refused("key-type", "labels:list-size"), refused("key-type")),
        (refused("key-type", "list-size"), refused("list-size")),
        (refused("json-depth"), refused("json-syntax")),
        (refused("weights-name"), OPENED),
        (refused("weights-name"), refused("weights-layout")),
        (refused("golden:key-type"), refused("weights-header")),
        (refused("golden:key-type"), refused("json-syntax")),
        (refused("weights-name"), refused("file-kind", status=22)),
    ],
)
def test_loaders_that_agree(python: Verdict, c: Verdict) -> None:
    assert agree(python, c)


@pytest.mark.parametrize(
    ("python", "c"),
    [
        (OPENED, refused("key-type")),
        (OPENED, refused("generation:key-type")),
        (refused("key-type"), OPENED),
        (refused("key-type"), refused("key-missing")),
        (refused("key-type"), refused("key-type", status=21)),
        (refused("key-type"), refused("key-type", "list-size")),
        (refused("weights-layout"), OPENED),
        (refused("axis-buckets"), OPENED),
        (refused("key-type", "weights-name"), OPENED),
        (refused("weights-name"), refused("weights-alignment")),
        (refused("json-depth"), refused("key-type")),
        (refused("text:key-type"), refused("text:key-type")),
        (refused("text:key-type"), refused("key-type")),
        (refused("text:key-type"), refused("program-signature", "key-type")),
        (refused("generation:key-type"), refused("generation:list-size")),
    ],
)
def test_loaders_that_disagree(python: Verdict, c: Verdict) -> None:
    assert not agree(python, c)
