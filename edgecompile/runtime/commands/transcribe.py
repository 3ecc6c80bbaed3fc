"""``transcribe``: the text of a recording in a file, from the command line."""

import argparse
import wave
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Mapping, Tuple

import numpy as np

from ..base.errors import InputError
from ..format.document import shorten
from ..model.open_bundle import open_bundle
from .generate import printable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..speech.transcript import Segment


def read_wav(path: str) -> "Tuple[NDArray[np.float32], int]":
    """The samples of a WAV file, float32 [samples] or [samples, channels] from -1 to 1, and its rate in Hz.

    Raises:
        InputError: it can't be read, or isn't PCM of 8, 16, 24 or 32 bits.
    """
    try:
        with wave.open(path, "rb") as file:
            width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
            data = file.readframes(file.getnframes())
    except OSError as error:
        raise InputError("{}: {}".format(shorten(path, 1024), error.strerror)) from None
    except (wave.Error, EOFError) as error:
        text = "{}: isn't a WAV file that can be read: {}"
        raise InputError(
            text.format(shorten(path, 1024), error or "it ends too early"),
            "convert it to 16-bit PCM",
        ) from None
    if width > 4:
        text = "{}: has {} bits a sample, must have 8, 16, 24 or 32"
        raise InputError(text.format(shorten(path, 1024), 8 * width), "convert it to 16-bit PCM")
    data = data[: len(data) - len(data) % (width * channels)]
    if width == 1:
        values = np.frombuffer(data, np.uint8).astype(np.float64) - 128
    elif width == 3:
        # As the upper bytes of integers of four.
        whole = np.zeros((len(data) // 3, 4), np.uint8)
        whole[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        values = whole.view("<i4")[:, 0].astype(np.float64) / 256
    else:
        values = np.frombuffer(data, "<i{}".format(width)).astype(np.float64)
    samples = (values / 2.0 ** (8 * width - 1)).astype(np.float32)
    return samples if channels == 1 else samples.reshape(-1, channels), rate


def run_transcribe(
    options: argparse.Namespace, show: Callable[[str], None], how: Mapping[str, Any]
) -> Tuple[Dict[str, Any], List[str]]:
    """Transcribes a file; ``show`` gets a line for each segment as soon as it is there.

    ``how`` has threads, variant and verify of ``open_bundle``.

    Returns:
        The report, plain JSON values: "bundle", "name", "variant", "language", "text" and "segments", each with
        "start", "end", "text" and "tokens"; and lines for people.

    Raises:
        InputError: the file can't be used, or an option doesn't go with the model.
    """
    samples, rate = read_wav(options.file)

    def tell(segment: "Segment") -> None:
        tokens = " ".join(str(token) for token in segment.tokens)
        text = tokens if segment.text is None else segment.text.strip()
        show("[{:.2f} - {:.2f}] {}\n".format(segment.start, segment.end, printable(text)))

    with open_bundle(options.bundle, **how) as model:
        result = model.transcribe(
            samples,
            rate,
            timestamps=False if options.no_timestamps else None,
            language=options.language,
            task=options.task,
            max_new_tokens=options.max_new_tokens,
            condition_on_prev_tokens=options.condition_on_prev_tokens,
            on_segment=tell,
        )
        info = model.info
    report = {
        "bundle": options.bundle,
        "name": info["name"],
        "variant": info["variant"],
        "language": result.language,
        "text": result.text,
        "segments": [dict(segment._asdict()) for segment in result.segments],
    }
    count = len(result.segments)
    line = "{} segments of {:.2f} s".format(count, len(samples) / rate)
    language = "" if result.language is None else ", the language is {}".format(result.language)
    return report, [line + language]
