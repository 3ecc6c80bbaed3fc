from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from edgecompile.errors import LengthsError
from edgecompile.lengths.distribution import LengthDistribution
from edgecompile.lengths.files import read_sizes
from edgecompile.lengths.joint import JointDistribution

WANTED = JointDistribution(("length", "batch"), ((12, 4), (12, 8), (30, 1)), (3, 1, 2))

FORMS = {
    "header": "length,batch,count\n12,4,3\n30,1,2\n12,8,1\n",
    "order, comments, spaces": "# traffic\n\n count, Batch ,length\n2,1,30 # one\n3,4,12\n1,8,12\n",
    "no counts": "length,batch\n12,4\n12,4\n12,4\n12,8\n30,1\n30,1\n",
    "repeated rows": "length,batch,count\n12,4,1\n12,4,2\n12,8,1.0\n30,1,1\n30,1,1\n",
    "byte order mark": "\ufefflength,batch,count\r\n12,4,3\r\n12,8,1\r\n30,1,2\r\n",
    "objects": '{"length":12,"batch":4,"count":3}\n{"batch":8,"length":12}\n'
    '{"length":30,"batch":1,"count":2}\n',
    "document": json.dumps(WANTED.to_json(), indent=1),
    "other order": json.dumps(
        {"axes": ["batch", "length"], "sizes": [[4, 12], [1, 30], [8, 12]], "counts": [3, 2, 1]}
    ),
    "cells": json.dumps(
        {"axes": ["length", "batch"], "cells": [[12, 4, 3], [12, 8, 1], [30, 1, 2]]}
    ),
}


def write(folder: Path, text: str) -> Path:
    path = folder / "sizes"
    path.write_bytes(text.encode())
    return path


def read_joint(source: Path | str, axes: tuple[str, ...] | None = None) -> JointDistribution:
    found = read_sizes(source, axes)
    assert isinstance(found, JointDistribution)
    return found


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(tmp_path: Path, form: str) -> None:
    path = write(tmp_path, FORMS[form])
    found = read_joint(path)
    assert (found.axes, found.sizes, found.counts) == (WANTED.axes, WANTED.sizes, WANTED.counts)
    again = read_joint(path, ("length", "batch"))
    assert again == found


def test_the_columns_of_a_model_are_picked_by_its_axes(tmp_path: Path) -> None:
    path = write(tmp_path, "id,batch,length,count\n1,4,12,3\n2,8,12,1\n3,1,30,2\n")
    assert isinstance(read_sizes(path), LengthDistribution)
    axes = ("tokens", "batch", "width")
    found = read_joint(path, axes)
    assert (found.axes, found.sizes) == (("tokens", "batch"), WANTED.sizes)
    path = write(tmp_path, "decoder,encoder\n3,5\n")
    assert read_joint(path, ("encoder", "decoder")).sizes == ((5, 3),)
    path = write(tmp_path, "length,encoder\n3,5\n")  # here length is the other axis
    assert read_joint(path, ("encoder", "length")).sizes == ((5, 3),)


@pytest.mark.parametrize(
    "text",
    [
        "12\n13\n",
        "12,3\n",
        "length,count\n12,3\n",
        "length,width\n12,3\n",
        "length,height,width\n12,3,4\n",
        '{"length": 12, "height": 3, "width": 4}\n',
        "length,batch,batch\n12,3,4\n",
        "length\n12\n",
        '{"length": 12, "count": 3}\n',
        '{"lengths": [1, 2]}',
        '{"12": 3}',
        "[1, 2]",
    ],
)
def test_files_of_lengths_are_not_joint(tmp_path: Path, text: str) -> None:
    path = write(tmp_path, text)
    assert isinstance(read_sizes(path), LengthDistribution)
    assert isinstance(read_sizes(path, ("length", "batch")), LengthDistribution)


@pytest.mark.parametrize(
    "text", ["", '{"axes": ["length"], "sizes": [[1]]}', "a,b\n1,2\n", "PK\0\0"]
)
def test_other_files_are_neither(tmp_path: Path, text: str) -> None:
    with pytest.raises(LengthsError):
        read_sizes(write(tmp_path, text))


def test_standard_input_is_read_once(monkeypatch: Any) -> None:
    for raw in (io.BytesIO(FORMS["header"].encode()), None):
        stream: Any = raw or io.BufferedReader(io.BytesIO(FORMS["header"].encode()))  # type: ignore[arg-type]
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        found = read_joint("-")
        assert (found.sizes, found.source) == (WANTED.sizes, "standard input")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("0,4,1", 'has the length "0", which is no size: sizes start at 1'),
        ("12,-3,1", 'has the batch "-3", which is no size'),
        ("2147483648,4,1", 'has the length "2147483648", which is over the largest size'),
        ("12,4,0", 'has the count "0", which is no count: counts start at 1'),
        ("12,4,-2", 'has the count "-2", which is no count'),
        ("12,4,nan", 'has the count "NaN", which isn\'t a finite number'),
        ("12,4,1.5", 'has the count "1.5", which isn\'t a whole number'),
        ("12,nan,1", 'has the batch "NaN", which isn\'t a finite number'),
        ("12,,1", "has no batch"),
        (",4,1", "has no length"),
        ("12,4,", "has no count"),
        ("12,4", "has 2 columns where the first row has 3"),
        ("12,four,1", 'has the batch "four", which isn\'t a number'),
        ("0,0,0", 'has the length "0", which is no size: sizes start at 1; has the batch "0"'),
        ('{"length": 1, "batch": 2}', "isn't a row of the kind that the first row is"),
    ],
)
def test_bad_rows_are_told_with_their_lines(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path, f"length,batch,count\n12,4,1\n{row}\n5,5,5\n{row}\n")
    with pytest.raises(LengthsError) as caught:
        read_joint(path)
    assert "2 problems" in caught.value.message
    assert f'line 3: "{row}" {reason}' in caught.value.message
    assert "line 5: " in caught.value.message
    assert "length,batch,count" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ('{"length": 12}', "has no batch"),
        ('{"length": 12, "batch": null}', "has no batch"),
        ('{"length": true, "batch": 1}', 'has the length "true", which isn\'t a number'),
        ('{"length": 12, "batch": 4, "count": 0}', 'has the count "0"'),
        ('{"length": 12, "batch": 4', "isn't valid JSON"),
        ("12,4,1", "isn't a row of the kind"),
    ],
)
def test_bad_objects_are_told_with_their_lines(tmp_path: Path, row: str, reason: str) -> None:
    path = write(tmp_path, f'{{"length": 1, "batch": 2}}\n{row}\n')
    with pytest.raises(LengthsError, match="line 2") as caught:
        read_joint(path)
    assert reason in caught.value.message


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"axes": ["length", "batch"]}, 'no list of "sizes"'),
        ({"axes": ["length", "batch"], "sizes": []}, "holds no sizes"),
        ({"axes": ["length", "batch"], "sizes": [[1, 2]], "counts": []}, "counts has 0 values"),
        ({"axes": ["length", "batch"], "sizes": [[1]]}, 'element 0: "[1]" isn\'t a pair'),
        ({"axes": ["length", "batch"], "sizes": [[1, 0]]}, 'the batch "0"'),
        ({"axes": ["length", "batch"], "cells": [[1, 2, 0]]}, 'the count "0"'),
        ({"axes": ["length", "batch"], "cells": [3]}, "isn't a pair"),
        ({"axes": ["length", "batch", "x"], "sizes": [[1, 1, 1]]}, "aren't two of length, another"),
        ({"axes": ["length", "length"], "sizes": [[1, 1]]}, "aren't two of"),
        ({"axes": [1, 2], "sizes": [[1, 1]]}, "aren't two of"),
        (
            {"axes": ["length", "batch"], "sizes": [[1, 1]], "counts": [2**53 + 1]},
            "over the largest",
        ),
        (
            {"axes": ["length", "batch"], "sizes": [[1, 1], [1, 2]], "counts": [2**53] * 2},
            "more than",
        ),
        ([[1, 2]], "element 0"),
    ],
)
def test_bad_documents_are_refused(tmp_path: Path, value: object, reason: str) -> None:
    with pytest.raises(LengthsError) as caught:
        read_joint(write(tmp_path, json.dumps(value)))
    assert reason in caught.value.message
    with pytest.raises(LengthsError):
        LengthDistribution.from_json(value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LengthsError, match="can't be read"):
        read_sizes(tmp_path / "none")


def test_a_document_of_two_axes_holds_no_lengths_alone() -> None:
    with pytest.raises(LengthsError, match="about two axes"):
        LengthDistribution.from_json({"axes": ["length", "width"], "sizes": [[1, 2]]})


@pytest.mark.parametrize("header", ["height,width,count", "Width,count,Height"])
def test_a_log_of_images_names_its_axes(tmp_path: Path, header: str) -> None:
    names = header.lower().split(",")
    rows = [
        ",".join(str({"height": h, "width": w, "count": n}[name]) for name in names)
        for h, w, n in ((480, 640, 7), (1, 1, 2))
    ]
    found = read_sizes(write(tmp_path, "\n".join([header, *rows])))
    assert isinstance(found, JointDistribution) and found.axes == ("height", "width")
    assert found.sizes == ((1, 1), (480, 640)) and found.counts == (2, 7)
    assert found.turned().sizes == ((1, 1), (640, 480)) and found.turned().counts == (2, 7)


@pytest.mark.parametrize(
    "log", ["height\n12\n", "h,w\n12,13\n", "height;width\n12;13\n", "640x480\n"]
)
def test_a_log_of_images_without_both_columns_is_told_their_names(tmp_path: Path, log: str) -> None:
    with pytest.raises(LengthsError) as caught:
        read_sizes(write(tmp_path, log))
    assert '"height,width,count"' in (caught.value.hint or "")
