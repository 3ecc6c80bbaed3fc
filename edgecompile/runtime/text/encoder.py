"""From texts to outputs: the bundle's tokenizer, batches of like length, the results per text.

The optional Python package tokenizers reads the bundle's tokenizer.json; all else is numpy.
"""

import os
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Protocol,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from ..base.errors import InputError, TokenizerError, TokenizersMissingError
from ..base.lifetime import Unique
from ..format.document import shorten
from ..format.manifest.schema import Dim, Extent, Manifest, TensorSpec, TextSpec
from .embedding import find_embedding, narrow

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A text, or two of them that go in together, such as a question and where its answer may stand.
Text = Union[str, Tuple[str, str]]

# A batch ends where the next text has less than this share of the longest one's tokens: what its
# padding costs is more than what running it beside the others saves.
_LIKE = 0.8


# A long text is cut before it is tokenized. Where so many tokens come behind the last one that the model reads,
# what was cut off can't have changed that one: tokens depend on characters near them. A word that has too many
# letters for a tokenizer, as one token, has over 100 of them.
_FURTHER = 256
# Characters of a token, so many that one try is enough for most texts.
_CHARACTERS = 8


class Bundle(Protocol):
    """The part of ``Model`` that texts need."""

    @property
    def manifest(self) -> Manifest:
        """The bundle's."""
        ...

    def open_file(self, name: str) -> int:
        """See ``Model.open_file``."""
        ...

    def run(self, inputs: Mapping[str, Any]) -> "Dict[str, NDArray[Any]]":
        """See ``Model.run``."""
        ...


class TokenizedText(NamedTuple):
    """The tokens of a text.

    ``ids`` and ``type_ids`` are numbers by token, special ones included; ``offsets`` say from which
    to which character of the text (of its second one where ``type_ids`` or a pair says so) a token
    reaches, (0, 0) for special ones; ``truncated`` whether its end was cut off.
    """

    ids: Tuple[int, ...]
    type_ids: Tuple[int, ...]
    offsets: Tuple[Tuple[int, int], ...]
    truncated: bool


class TextOutputs(Dict[str, Any]):
    """The outputs by name, for every text in the order in which they were given.

    An output whose shape has no tokens is one array [texts, …]; one with a row per token is a list
    of an array for each text, without padding. ``texts`` has what the tokenizer made of each, and
    ``truncated`` the positions of those that were cut.
    """

    def __init__(self, outputs: Dict[str, Any], texts: Sequence[TokenizedText]) -> None:
        super().__init__(outputs)
        self.texts = tuple(texts)

    @property
    def truncated(self) -> Tuple[int, ...]:
        """Positions of the texts that were longer than the bundle takes."""
        return tuple(i for i, text in enumerate(self.texts) if text.truncated)


def open_tokenizer(model: Bundle) -> Any:
    """The bundle's tokenizer, as the package tokenizers has it, with cutting and filling off.

    Raises:
        TokenizerError: the bundle holds none, or the package can't read it.
        TokenizersMissingError: the package isn't installed.
        DamagedBundleError: the file differs from its recorded hash.
    """
    return open_tokenizer_file(model, _spec(model).tokenizer)


def open_tokenizer_file(model: Bundle, path: str) -> Any:
    """The tokenizer in a file of the bundle; see ``open_tokenizer``."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TokenizersMissingError(
            "{}: texts need the Python package tokenizers, which isn't installed here".format(
                model.manifest.name
            ),
            "pip install tokenizers; or tokenize elsewhere and give token ids to "
            + _ids_taker(model),
        ) from None
    with os.fdopen(model.open_file(path), "rb") as stream:
        data = stream.read()
    try:
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises plain Exception
        text = "{}: {} can't be read: {}"
        raise TokenizerError(
            text.format(model.manifest.name, path, shorten(error, 200)),
            "a newer version of the package tokenizers may know it",
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _spec(model: Bundle) -> TextSpec:
    spec = model.manifest.text
    if spec is None:
        raise TokenizerError(
            "{}: the bundle holds no tokenizer".format(model.manifest.name),
            "build it from a folder with a tokenizer.json, and keep the tokenizer; or give token "
            "ids to " + _ids_taker(model),
        )
    return spec


def _ids_taker(model: Bundle) -> str:
    generates = model.manifest.generation is not None
    return "generate(), on the command line as --ids" if generates else "run()"


class TextEncoder(Unique):
    """Runs texts through an open model; made once for it. May be used from any thread."""

    def __init__(self, model: Bundle) -> None:
        """Reads the tokenizer.

        Raises:
            TokenizerError: see ``open_tokenizer``; or the model takes more than texts give.
        """
        self._spec = _spec(model)
        self._layout = _Layout(model.manifest, self._spec)
        # Who has tokens already needs no package: that it is missing is told once there is a text.
        self._missing: Optional[Tuple[str, Optional[str]]] = None
        try:
            self._tokenizer = open_tokenizer(model)
        except TokenizersMissingError as error:
            self._missing = (error.message, error.hint)
        else:
            self._tokenizer.enable_truncation(self._spec.max_length)

    def tokenize(
        self, texts: Iterable[Text], prompt: Optional[str] = None, truncate: bool = True
    ) -> List[TokenizedText]:
        """Tokenizes each text; what is over the bundle's ``max_length`` is cut.

        Args:
            texts: strings, or pairs of them.
            prompt, truncate: see ``Model.encode_texts``.

        Raises:
            InputError: an item isn't text, or is too long and isn't to be cut; nothing is left of
                one, or there is no such prompt.
            TokenizersMissingError: see ``open_tokenizer``.
        """
        prepared = [self._prepare(i, text, prompt) for i, text in enumerate(_listed(texts))]
        result: List[TokenizedText] = []
        if not prepared:
            return result
        if self._missing is not None:
            raise TokenizersMissingError(*self._missing)
        for encoding in self._encode(prepared):
            cut = bool(encoding.overflowing)
            ids, types = tuple(encoding.ids), tuple(encoding.type_ids)
            result.append(TokenizedText(ids, types, tuple(encoding.offsets), cut))
        self._check(result, truncate)
        return result

    def make_inputs(self, texts: Sequence[TokenizedText]) -> "Dict[str, NDArray[Any]]":
        """The model's inputs for texts that run together, [batch, tokens], filled up to the longest.

        Raises:
            InputError: the bundle can't tell padding from content, and there would be some.
        """
        return self._layout.make_inputs(texts, self._spec.pad_id)

    def cut(self, name: str, row: "NDArray[Any]", tokens: int) -> "NDArray[Any]":
        """A text's row of an output, without what belongs to padding."""
        return self._layout.cut(name, row, tokens)

    def encode(
        self,
        model: Bundle,
        texts: Iterable[Text],
        prompt: Optional[str],
        truncate: bool,
        precision: str = "float32",
    ) -> TextOutputs:
        """See ``Model.encode_texts``."""
        embedding = None
        if precision != "float32":
            embedding = find_embedding(model.manifest, precision)
        tokenized = self.tokenize(texts, prompt, truncate)
        layout = self._layout
        rows: List[Dict[str, NDArray[Any]]] = [{} for _ in tokenized]
        for group in layout.group([len(item.ids) for item in tokenized]):
            batch = [tokenized[i] for i in group]
            outputs = model.run(layout.make_inputs(batch, self._spec.pad_id))
            for row, index in enumerate(group):
                for name, array in outputs.items():
                    rows[index][name] = layout.cut(name, array[row], len(tokenized[index].ids))
        result = layout.collect(rows)
        if embedding is not None:
            ranges = model.manifest.ranges.get(embedding)
            result[embedding] = narrow(result[embedding], precision, ranges)
        return TextOutputs(result, tokenized)

    def _encode(self, texts: Sequence[Any]) -> List[Any]:
        """The encoding of each text, of which only as much is tokenized as the model may read."""
        result: List[Any] = [None] * len(texts)
        size = (self._spec.max_length + _FURTHER) * _CHARACTERS
        todo = list(range(len(texts)))
        while todo:
            heads = [_cut(texts[index], size) for index in todo]
            encodings = self._tokenizer.encode_batch([head for head, _ in heads])
            again = []
            for index, encoding, (_, cut) in zip(todo, encodings, heads):
                if cut is not None and _count_further(encoding, cut) < _FURTHER:
                    again.append(index)
                else:
                    result[index] = encoding
            todo, size = again, size * 8
        return result

    def _prepare(self, index: int, text: Text, prompt: Optional[str]) -> Any:
        prompts = self._spec.prompts
        name = self._spec.default_prompt if prompt is None else prompt
        if name is not None and (not isinstance(name, str) or name not in prompts):
            names = ", ".join(repr(shorten(item)) for item in prompts) or "none"
            message = "there is no prompt {!r}; the bundle has {}".format(shorten(name), names)
            raise InputError(message)
        parts: Any = (text,) if isinstance(text, str) else text
        if not isinstance(parts, (tuple, list)) or len(parts) not in (1, 2):
            message = "text {} is a {}, must be a string or a pair of strings"
            raise InputError(message.format(index, type(text).__name__))
        for part in parts:
            if not isinstance(part, str):
                message = "text {} holds a {}, must be a string or a pair of strings"
                raise InputError(message.format(index, type(part).__name__))
            try:
                part.encode("utf-8")
            except UnicodeEncodeError as error:
                message = "text {} has half of a surrogate pair, {!a} at {}, and can't be encoded"
                raise InputError(
                    message.format(index, part[error.start], error.start),
                    "it was decoded wrongly: decode its bytes with errors='replace'",
                ) from None
        done = [prompts[name] + parts[0] if name is not None else parts[0], *parts[1:]]
        for step in self._spec.prepare:
            done = [part.strip() if step == "strip" else part.lower() for part in done]
        return done[0] if len(done) == 1 else tuple(done)

    def _check(self, texts: Sequence[TokenizedText], truncate: bool) -> None:
        cut = [str(i) for i, text in enumerate(texts) if text.truncated]
        if cut and not truncate:
            message = "{} of {} texts have more than {} tokens: number {}"
            listed = ", ".join(cut[:20]) + (", …" if len(cut) > 20 else "")
            raise InputError(
                message.format(len(cut), len(texts), self._spec.max_length, listed),
                "truncate=True cuts them, or split them first",
            )
        if "type_ids" not in self._layout.parts and any(any(text.type_ids) for text in texts):
            raise InputError(
                "the tokenizer tells the second text of a pair by its type, which this bundle doesn't "
                "take",
                "build it with token_type_ids",
            )
        empty = [str(i) for i, text in enumerate(texts) if not text.ids]
        if empty:
            raise InputError(
                "the tokenizer leaves nothing of text {}".format(", ".join(empty[:20]))
            )


class _Layout:
    """The axes of texts in the model's inputs and outputs."""

    def __init__(self, manifest: Manifest, spec: TextSpec) -> None:
        self.inputs = {item.name: item for item in manifest.inputs}
        self.outputs = {item.name: item for item in manifest.outputs}
        self.parts = {part: name for name, part in spec.inputs.items()}
        others = [name for name in self.inputs if name not in spec.inputs]
        ids = self.inputs[self.parts["ids"]]
        self._rows, self._tokens = ids.shape
        strange = [item.name for item in manifest.outputs if item.shape[:1] != (self._rows,)]
        problems = []
        if others:
            problems.append("it also takes {}, which texts don't give".format(", ".join(others)))
        if strange:
            problems.append("its output {} isn't by text".format(", ".join(strange)))
        if problems:
            text = "{}: the bundle can't be run on texts alone: {}"
            hint = "tokenize yourself and use run()"
            if manifest.generation is not None:
                problems = ["it generates text"]
                hint = "use generate, chat or transcribe"
            raise TokenizerError(text.format(manifest.name, "; ".join(problems)), hint)
        self._batch = _extent(self._rows, manifest)
        self._length = _extent(self._tokens, manifest)
        # Rows of other lengths can share a batch only where something tells padding from content.
        varies = any(None in item.shape for item in manifest.outputs)
        self._mixed = "attention_mask" in self.parts and not varies

    def group(self, lengths: Sequence[int]) -> List[List[int]]:
        """Positions of texts that run together, the longest first, as many as a batch takes."""
        groups: List[List[int]] = []
        for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
            size = lengths[index]
            if groups and len(groups[-1]) < self._batch.hi:
                longest = lengths[groups[-1][0]]
                # What is shorter than the least length is filled up to it anyway.
                width = max(longest, self._length.lo)
                like = max(size, self._length.lo) >= width * _LIKE
                if like if self._mixed else size == longest:
                    groups[-1].append(index)
                    continue
            groups.append([index])
        return groups

    def make_inputs(self, texts: Sequence[TokenizedText], pad_id: int) -> "Dict[str, NDArray[Any]]":
        """Arrays of the inputs; rows that a fixed batch has too many repeat the first one."""
        longest = max(len(text.ids) for text in texts)
        size = max(longest, self._length.lo)
        if not self._mixed and any(len(text.ids) < size for text in texts):
            message = "a text has {} tokens, the bundle takes {} and no mask to fill the rest"
            raise InputError(message.format(longest, self._length))
        shape = (max(len(texts), self._batch.lo), size)
        fills = {"ids": pad_id, "attention_mask": 0, "type_ids": 0}
        result = {}
        for part, name in self.parts.items():
            array = np.full(shape, fills[part], dtype=self.inputs[name].dtype)
            for row in range(shape[0]):
                text = texts[row if row < len(texts) else 0]
                values = {"ids": text.ids, "type_ids": text.type_ids}.get(part, 1)
                array[row, : len(text.ids)] = values
            result[name] = array
        return result

    def cut(self, name: str, row: "NDArray[Any]", tokens: int) -> "NDArray[Any]":
        """A text's part of an output, without what belongs to padding."""
        if not self._by_token(self.outputs[name]):
            return row
        dims = self.outputs[name].shape[1:]
        span = slice(0, tokens)
        return row[tuple(span if dim == self._tokens else slice(None) for dim in dims)]

    def collect(self, rows: "Sequence[Dict[str, NDArray[Any]]]") -> Dict[str, Any]:
        """The outputs of all texts by name, see ``TextOutputs``."""
        result: Dict[str, Any] = {}
        for name, item in self.outputs.items():
            if self._by_token(item) or None in item.shape:
                result[name] = [np.array(row[name]) for row in rows]
            elif rows:
                result[name] = np.stack([row[name] for row in rows])
            else:
                fixed = [dim if isinstance(dim, int) else 0 for dim in item.shape[1:]]
                result[name] = np.empty((0, *fixed), dtype=item.dtype)
        return result

    def _by_token(self, item: TensorSpec) -> bool:
        # A length that is fixed can't be told from a hidden size: nothing is cut then.
        return isinstance(self._tokens, str) and self._tokens in item.shape[1:]


def _cut(text: Any, size: int) -> Tuple[Any, Optional[int]]:
    """A text or a pair, the longer part cut to ``size`` characters or more, and which part was cut (0, 1 or None).

    Of a pair the part with more tokens may keep one more than the other. So the cut one stays far longer.
    """
    if isinstance(text, str):
        return (text[:size], 0) if len(text) > size else (text, None)
    index = 0 if len(text[0]) > len(text[1]) else 1
    size = max(size, _CHARACTERS * len(text[1 - index]))
    if len(text[index]) <= size:
        return text, None
    return tuple(part[:size] for part in text), index


def _count_further(encoding: Any, index: int) -> int:
    """The number of tokens of a text, the first or second of a pair, behind those that the model reads."""
    return sum(item.sequence_ids.count(index) for item in encoding.overflowing)


def _extent(dim: Dim, manifest: Manifest) -> Extent:
    if isinstance(dim, int):
        return Extent(dim, dim)
    return manifest.axes[str(dim)]


def _listed(texts: Iterable[Text]) -> List[Text]:
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        message = "texts is a {}, must be a list of strings"
        raise InputError(message.format(type(texts).__name__), "for one text: [text]")
    return list(texts)
