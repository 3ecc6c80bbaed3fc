"""Golden generations: prompts with the tokens that the original model made of them, replayed.

Each step is given the golden token, whatever was chosen, and only a choice that can't be rounding
counts as an error: where two logits are nearly equal, another instruction set may prefer the other
token, and every later one would differ then.
"""

import base64
import math
import os
import time
from typing import TYPE_CHECKING, Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import numpy as np

from ..base.errors import DamagedBundleError, EdgecompileError
from ..format.document import Field, Problems, parse_json
from ..format.manifest.schema import SEQ2SEQ, Manifest, Tolerance
from .options import Options
from .request import GenerationRequest
from .session import Session, open_session
from .stream import TokenStream
from .together import Together

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..open.bundle import OpenBundle

FILE = "golden/generation.json"
MAX_BYTES = 4 << 20
MAX_CASES = 1024


class GenerationCase(NamedTuple):
    """A prompt and the text that follows if the likeliest token is always taken.

    ``source`` is what an encoder reads, where there is one: tokens, or an array. ``margin`` is the
    difference of a logit that is allowed beyond the tolerance, as a share of the largest.
    """

    prompt: Tuple[int, ...]
    tokens: Tuple[int, ...]
    source: "Union[List[int], NDArray[Any], None]" = None
    margin: float = 0.0


def parse_generation_cases(data: bytes, source: str, manifest: Manifest) -> List[GenerationCase]:
    """Reads golden generations of a generative bundle.

    Whether an encoder takes the sources is seen when they are run.

    Raises:
        BundleError: rules json-…, key-…, list-size and golden-generation; lists every problem.
    """
    spec = manifest.generation
    assert spec is not None
    problems = Problems(source)
    vocabulary = manifest.outputs[0].shape[1]
    assert isinstance(vocabulary, int)
    cases = []
    document = Field(problems, parse_json(data, source, MAX_BYTES))
    share = document.find("margin")
    margin = (share.number() or 0.0) if share.given else 0.0
    if not 0 <= margin <= 1:
        share.refuse("golden-generation", "is {}, must be 0 to 1".format(margin))
    for entry in document.at("cases").objects(1, MAX_CASES):
        if problems.too_many:
            break
        lists = []
        for key in ("prompt", "tokens"):
            tokens = entry.at(key).integers(1, spec.max_context)
            wrong = [item for item in tokens if not 0 <= item < vocabulary]
            if wrong:
                text = "{} isn't a token, 0..{}".format(wrong[0], vocabulary - 1)
                entry.find(key).refuse("golden-generation", text)
            lists.append(tokens)
        if len(lists[0]) + len(lists[1]) > spec.max_context:
            text = "{} and {} tokens, the context has {}"
            text = text.format(len(lists[0]), len(lists[1]), spec.max_context)
            entry.refuse("golden-generation", text)
        case_source = None
        if spec.kind == SEQ2SEQ:
            case_source = _read_source(entry.at("source"))
            if tuple(lists[0][: len(spec.start)]) != spec.start:
                text = "doesn't begin with the start tokens"
                entry.find("prompt").refuse("golden-generation", text)
        cases.append(GenerationCase(lists[0], lists[1], case_source, margin))
    problems.raise_if_any(hint="the bundle was written wrongly or changed; build it again")
    return cases


def _read_source(field: Field) -> "Union[List[int], NDArray[Any], None]":
    """A list of tokens, or {"shape", "float32"}: the numbers, little-endian, in Base64."""
    if not isinstance(field.value, dict):
        return list(field.integers(1, MAX_BYTES))
    sizes = list(field.at("shape").integers(1, 8))
    text = field.at("float32").string() or ""
    try:
        data = base64.b64decode(text, validate=True)
        numbers = np.frombuffer(data, "<f4").astype(np.float32)
        return numbers.reshape(sizes) if min(sizes, default=0) > 0 else numbers.reshape(-1, 0)
    except ValueError:
        text = "isn't float32 numbers of the shape {} in Base64".format(sizes)
        field.refuse("golden-generation", text)
        return None


def replay_generations(model: "OpenBundle", folder: Optional[str] = None) -> List[Dict[str, Any]]:
    """Replays the golden generations of a bundle, or those in a folder; [] if it has none to have.

    Args:
        model: an open bundle.
        folder: a folder with a ``generation.json`` instead of the bundle's; without one there
            nothing is replayed.

    Returns:
        For each case "case" (its number), "ok", "prompt" and "tokens" (how many), "ties" (choices
        that differed within the tolerance), "ms" per token, and "error" where it failed. A
        generative bundle without the file has one failed case. So has one more where several
        texts in one run have other logits than alone, or a run that leaves out logits has others.
    """
    if model.manifest.generation is None:
        return []
    try:
        if folder is not None:
            path = os.path.join(folder, os.path.basename(FILE))
            if not os.path.exists(path):
                return []
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        elif FILE in model.manifest.files:
            path, fd = FILE, model.open_file(FILE)
        else:
            raise DamagedBundleError("the bundle has no {}".format(FILE))
        with os.fdopen(fd, "rb") as stream:
            cases = parse_generation_cases(stream.read(MAX_BYTES + 1), path, model.manifest)
    except OSError as error:
        return [_result(0, error="can't be read: {}".format(error.strerror))]
    except EdgecompileError as error:
        return [_result(0, error=str(error))]
    results = [_replay(model, index, case) for index, case in enumerate(cases)]
    checks = ((model.batch_texts, _compare_together), (model.masks_logits, _compare_masked))
    for check in [check for wanted, check in checks if wanted]:
        try:
            problem = check(model, [case.prompt for case in cases])
        except EdgecompileError as failed:
            problem = str(failed)
        if problem is not None:
            results.append(_result(len(results), error=problem))
    return results


class _Judge:
    """Chooses the golden tokens, and notes where the logits want others."""

    def __init__(self, tokens: Tuple[int, ...], tolerance: Tolerance, margin: float = 0.0) -> None:
        self.tokens = tokens
        self.margin = margin
        self.tolerance = tolerance
        self.made = 0
        self.ties = 0
        self.error: Optional[str] = None
        #: The logits behind each token, where they are wanted.
        self.rows: Optional[List[NDArray[np.float32]]] = None

    def choose(self, logits: "NDArray[np.float32]") -> int:
        expected, token = self.tokens[self.made], int(logits.argmax())
        if self.rows is not None:
            self.rows.append(logits.copy())
        if not math.isfinite(logits[token]):
            # argmax may well name the very token that is wanted, and any gap is within an infinity.
            if self.error is None:
                self.error = "token {}: the largest logit is {}".format(self.made, logits[token])
        elif token != expected:
            gap = float(logits[token]) - float(logits[expected])
            # Tokens that mustn't be chosen have minus infinity.
            scale = float(abs(logits[np.isfinite(logits)]).max())
            # Each of the two may differ by as much as an output may.
            limit = 2 * (self.tolerance.limit(scale) + self.margin * scale)
            if gap <= limit:
                self.ties += 1
            elif self.error is None:
                text = "token {} is {}, must be {}: its logit is less by {:.3g}, allowed {:.3g}"
                self.error = text.format(self.made, token, expected, gap, limit)
        self.made += 1
        return expected


def _replay(model: "OpenBundle", index: int, case: GenerationCase) -> Dict[str, Any]:
    judge = _Judge(case.tokens, model.tolerance, case.margin)
    if model.manifest.generation is not None and model.manifest.generation.lookup > 1:
        judge.rows = []
    started = time.perf_counter_ns()
    try:
        input_ids: Any = list(case.prompt)
        decoder_ids: Any = None
        spec, session = model.manifest.generation, open_session(model, Session)
        if case.source is not None:
            assert spec is not None
            decoder_ids, input_ids = input_ids, case.source
            if isinstance(input_ids, np.ndarray):
                input_ids = {spec.source: input_ids}
        options = Options(max_new_tokens=len(case.tokens), do_sample=False, eos=())
        request = session.request(input_ids, decoder_ids, options)
        for _ in TokenStream(session, request, judge.choose):
            pass
        taken = time.perf_counter_ns() - started
        if judge.error is None and judge.rows is not None:
            assert spec is not None
            judge.error = _compare_rows(open_session(model, Session), request, judge, spec.lookup)
    except EdgecompileError as error:
        return _result(index, case, error=str(error))
    ms = taken / 1e6 / len(case.tokens)
    return _result(index, case, judge.ties, ms, judge.error)


def _compare_rows(
    session: Session, request: GenerationRequest, judge: _Judge, most: int
) -> Optional[str]:
    """The first difference of a run of several tokens from the runs of single ones, to the last bit."""
    assert judge.rows is not None
    want, tokens = judge.rows, judge.tokens
    stream = TokenStream(session, request, lambda logits: tokens[0])
    next(stream)
    # From each token on a run of another number of tokens, of which the first one is kept.
    for made, token in enumerate(tokens[:-1]):
        with session.lent(stream) as held:
            part = tokens[made : made + min(2 + made % (most - 1), held.room().most + 1)]
            rows = list(held.try_tokens(part)) if len(part) > 1 else [held.advance(token)]
        for index, (row, single) in enumerate(zip(rows, want[made + 1 :]), made + 1):
            if row.tobytes() != single.tobytes():
                text = (
                    "token {}: a run of {} tokens gives other logits than runs of single ones; "
                    "build it without lookup"
                )
                return text.format(index, len(part))
    return None


def _compare_together(model: "OpenBundle", prompts: Sequence[Tuple[int, ...]]) -> Optional[str]:
    """The first difference of texts that get tokens in one run from the same texts alone, to the last bit."""
    together, spec = Together(model), model.manifest.generation
    assert spec is not None
    room = spec.max_context - together.most - 1
    pairs = []
    for text in range(together.most if room > 0 else 0):
        prompt = prompts[text % len(prompts)][: min(1 + 5 * text, room)]
        options = {"max_new_tokens": together.most + 1, "do_sample": False, "eos": ()}
        pair = [open_session(model, Session).stream(prompt, **options) for _ in range(2)]
        for stream in pair:
            next(stream)
        pairs.append(pair)
    for count in range(2, len(pairs) + 1):
        together.run([one for one, _ in pairs[:count]])
        for text, (one, alone) in enumerate(pairs[:count]):
            alone.run()
            assert one.logits is not None
            assert alone.logits is not None
            if one.logits.tobytes() != alone.logits.tobytes():
                return (
                    "text {} of {} in one run has other logits than alone; "
                    "build it without texts at once"
                ).format(text, count)
            next(one)
            next(alone)
    return None


def _compare_masked(model: "OpenBundle", prompts: Sequence[Tuple[int, ...]]) -> Optional[str]:
    """The first difference of a run that leaves out logits from a whole run, to the last bit."""
    spec = model.manifest.generation
    assert spec is not None
    if spec.max_context < 3:
        return None
    prompt = prompts[0][: spec.max_context - 2]

    def run(wanted: "Optional[NDArray[np.bool_]]" = None) -> "NDArray[np.float32]":
        session = open_session(model, Session)
        request = session.request(prompt, None, Options(max_new_tokens=2, eos=()))
        stream = TokenStream(session, request, lambda logits: 0)
        next(stream)
        with session.lent(stream) as held:
            return held.advance(0, wanted).copy()

    whole = run()
    for third in range(3):
        wanted = np.arange(len(whole)) // 40 % 3 == third
        if run(wanted)[wanted].tobytes() != whole[wanted].tobytes():
            return "a run that leaves out logits gives other ones than a whole run"
    return None


def _result(
    index: int,
    case: Optional[GenerationCase] = None,
    ties: int = 0,
    ms: Optional[float] = None,
    error: Optional[str] = None,
) -> Dict[str, Any]:
    result: Dict[str, Any] = {
        "case": index,
        "ok": error is None,
        "prompt": 0 if case is None else len(case.prompt),
        "tokens": 0 if case is None else len(case.tokens),
        "ties": ties,
        "ms": ms,
    }
    if error is not None:
        result["error"] = error
    return result


def format_generations(results: List[Dict[str, Any]]) -> List[str]:
    """A line for each case, for people."""
    lines = []
    for item in results:
        verdict = "ok" if item["ok"] else "FAILED: " + item["error"]
        if item["ties"]:
            verdict += " ({} near ties)".format(item["ties"])
        text = "generation {}: {} tokens behind {}, {} ms each: {}"
        ms = "-" if item["ms"] is None else "{:.3g}".format(item["ms"])
        lines.append(text.format(item["case"], item["tokens"], item["prompt"], ms, verdict))
    return lines
