"""``encode``: texts through a bundle, from the command line."""

import sys
from typing import Any, Dict, List, Optional, Sequence

from ..base.errors import InputError
from ..format.document import shorten
from ..model.open_bundle import open_bundle
from ..text.encoder import Text, TextOutputs

_SHOWN = 4  # numbers of a row, and labels of a text


def read_texts(arguments: Sequence[str], path: Optional[str]) -> List[str]:
    """The texts of the options: those given, then the lines of a file ("-": standard input).

    Raises:
        InputError: there are none, or the file isn't UTF-8 text that can be read.
    """
    texts = list(arguments)
    if path is not None:
        try:
            if path == "-":
                data = sys.stdin.buffer.read()
            else:
                with open(path, "rb") as stream:
                    data = stream.read()
            texts += [line for line in data.decode("utf-8").splitlines() if line.strip()]
        except OSError as error:
            raise InputError("{}: {}".format(shorten(path, 1024), error.strerror)) from None
        except UnicodeDecodeError as error:
            text = "{}: byte {} isn't UTF-8".format(shorten(path, 1024), error.start)
            raise InputError(text, "one text a line, UTF-8") from None
    if not texts:
        raise InputError("there is no text", "give --text TEXT or --file FILE")
    return texts


def encode_bundle(
    bundle: str,
    texts: Sequence[Text],
    *,
    prompt: Optional[str] = None,
    **how: Any,
) -> Dict[str, Any]:
    """Runs texts and gives all that came of them as plain JSON values.

    Returns:
        "texts", each with its "text", the number of "tokens", whether it was "truncated", its
        "outputs" as lists, and "labels": by output label and value, the largest value first.

    Raises:
        EdgecompileError: see ``open_bundle`` and ``Model.encode_texts``.
    """
    with open_bundle(bundle, warmup=False, **how) as model:
        outputs = model.encode_texts(texts, prompt=prompt)
        labels = model.manifest.labels
    entries = []
    for index, text in enumerate(texts):
        tokenized = outputs.texts[index]
        entries.append(
            {
                "text": text,
                "tokens": len(tokenized.ids),
                "truncated": tokenized.truncated,
                "outputs": {name: values[index].tolist() for name, values in outputs.items()},
                "labels": _labels(outputs, index, labels),
            }
        )
    return {"texts": entries}


def _labels(outputs: TextOutputs, index: int, labels: Any) -> Dict[str, List[Any]]:
    """(label, value) by output, for outputs that have one row of them for a text."""
    result = {}
    for name, names in labels.items():
        row = outputs[name][index]
        if row.ndim == 1:
            pairs = [[label, float(value)] for label, value in zip(names, row)]
            result[name] = sorted(pairs, key=lambda pair: -pair[1])
    return result


def format_encode(report: Dict[str, Any]) -> List[str]:
    """A line for every output of every text."""
    lines = []
    for entry in report["texts"]:
        cut = ", cut" if entry["truncated"] else ""
        lines.append("{}  ({} tokens{})".format(shorten(entry["text"]), entry["tokens"], cut))
        for name, value in entry["outputs"].items():
            pairs = entry["labels"].get(name)
            if pairs is not None:
                text = ", ".join("{} {:.4g}".format(*pair) for pair in pairs[:_SHOWN])
                more = len(pairs) - _SHOWN
            else:
                text, more = _numbers(value)
            lines.append("  {}: {}{}".format(name, text, ", …" if more > 0 else ""))
    return lines


def _numbers(value: Any) -> Any:
    """The first numbers of the first row, and how many more there are."""
    if not isinstance(value, list):
        return "{:.4g}".format(value), 0
    if value and isinstance(value[0], list):
        first, more = _numbers(value[0])
        return "{} rows, the first {}".format(len(value), first), more
    return ", ".join("{:.4g}".format(item) for item in value[:_SHOWN]), len(value) - _SHOWN
