"""Grammars of new text: JSON by a schema, a regular expression, or Lark's rules.

The optional Python package llguidance reads them, and says after each token which ones may come next. Grammars
come from users of a server, too: what would take too long, or end the process, is refused before llguidance sees it.
"""

import json
import re
import threading
from typing import (
    TYPE_CHECKING,
    Any,
    Dict,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
    Union,
)

import numpy as np

from ..base.errors import ConstraintError, TokenizerError
from ..base.lifetime import Unique
from ..format.document import shorten
from .schema_limits import check_multiples, check_schema
from .tools import ToolFormat, make_call_schema, name_tool

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Kinds of grammars: their names as arguments of ``Model.make_constraint``.
JSON_SCHEMA, REGEX, LARK = "json_schema", "regex", "lark"
#: Of servers alone: one of several texts, written as rules.
CHOICE = "choice"
MAX_SCHEMA_BYTES = 64 << 10
MAX_REGEX_BYTES = 4 << 10
#: llguidance compiles rules by recursion: several thousand in a chain end the process.
MAX_LARK_BYTES, MAX_LARK_LINES = 64 << 10, 500
MAX_CHOICES = 2000
#: For the expressions of one grammar; most take under a hundredth of it, and a bad one about two seconds.
_FUEL = 200_000
_PRODUCTIONS = 100_000
_LONGEST = 500
_TOOLS = "a call of these tools"
#: Of llguidance's errors: the place in the rules, and the rules.
_RULES = re.compile(r"^at \d+\(\d+\): failed to compile JSON schema: |\s\d+ \| .*", re.DOTALL)
#: A text that these end is whole.
_WHOLE = ("NoExtension", "NoExtensionBias", "EndOfSentence")


class Grammar(NamedTuple):
    """A grammar that is to be obeyed: one of the kinds above, its text, and its name in errors if not the kind."""

    kind: str
    text: str
    name: str = ""


def make_grammar(
    json_schema: Union[str, Mapping[str, Any], bool, None] = None,
    regex: Optional[str] = None,
    lark: Optional[str] = None,
    choice: Optional[Sequence[str]] = None,
) -> Grammar:
    """The one grammar that is given; see ``Model.make_constraint``. ``choice`` has the texts of which it is one.

    Raises:
        ConstraintError: none is given or several are, or it isn't one, or is larger than is read here.
    """
    given = {JSON_SCHEMA: json_schema, REGEX: regex, LARK: lark, CHOICE: choice}
    kinds = [kind for kind, value in given.items() if value is not None]
    if len(kinds) != 1:
        raise ConstraintError(
            "a constraint is one of json_schema, regex and lark, not {}".format(
                " and ".join(kinds) or "none of them"
            )
        )
    kind = kinds[0]
    if json_schema is not None:
        return Grammar(kind, _read_schema(json_schema)[0])
    if choice is not None:
        return Grammar(kind, _write_choice(choice))
    text: Any = given[kind]
    if not isinstance(text, str):
        raise ConstraintError("{} is a {}, must be a text".format(kind, type(text).__name__))
    most = MAX_REGEX_BYTES if kind == REGEX else MAX_LARK_BYTES
    _check_size(kind, text, most)
    if kind == LARK and text.count("\n") >= MAX_LARK_LINES:
        raise ConstraintError(
            "lark has {} lines, the limit is {}".format(text.count("\n") + 1, MAX_LARK_LINES)
        )
    return Grammar(kind, text)


def _read_schema(
    schema: Union[str, Mapping[str, Any], bool], name: str = JSON_SCHEMA
) -> Tuple[str, Dict[str, Any]]:
    """A schema as JSON, and as that is read; ``name`` is its name in errors."""
    if isinstance(schema, str):
        _check_size(name, schema, MAX_SCHEMA_BYTES)
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            text = "{} isn't JSON: {}".format(name, error)
            raise ConstraintError(shorten(text, _LONGEST)) from None
    if isinstance(schema, bool):  # true is any JSON, false none
        schema = {} if schema else {"anyOf": []}
    if not isinstance(schema, Mapping):
        text = "{} is a {}, must be an object"
        raise ConstraintError(text.format(name, type(schema).__name__))
    try:
        # No NaN, which is no JSON; characters as they are, and half of a pair as an error.
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        text = "{} can't be written as JSON: {}".format(name, error)
        raise ConstraintError(shorten(text, _LONGEST)) from None
    # The size first: to follow a large one's references takes long.
    _check_size(name, text, MAX_SCHEMA_BYTES)
    document = json.loads(text)
    check_schema(document, name)
    return text, document


def _write_choice(texts: Sequence[str]) -> str:
    if len(texts) > MAX_CHOICES:
        text = "choice has {} texts, the limit is {}"
        raise ConstraintError(text.format(len(texts), MAX_CHOICES))
    rules = "start: " + " | ".join(map(_quote, texts))
    _check_size(CHOICE, rules, MAX_LARK_BYTES)
    return rules


def _quote(text: str) -> str:
    """A text within Lark's rules, whose reader takes no control characters as they are."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _check_size(kind: str, text: str, most: int) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise ConstraintError("{} has half of a surrogate pair".format(kind)) from None
    if size > most:
        raise ConstraintError("{} has {} bytes, the limit is {}".format(kind, size, most))


class Grammars(Unique):
    """Makes constraints of grammars, for one model's tokenizer."""

    def __init__(self, tokenizer: Any, vocabulary: int, eos: Sequence[int]) -> None:
        """
        Args:
            tokenizer: one of the package tokenizers.
            vocabulary: number of tokens that the model gives logits of.
            eos: tokens that end a text.
        """
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._eos = list(eos)
        self._lock = threading.Lock()
        self._package: Any = None
        self._read: Any = None

    def make(self, grammar: Grammar) -> "GrammarConstraint":
        """A constraint for one text. This may take seconds, in which other threads go on.

        Raises:
            ConstraintError: llguidance can't read the grammar, or has no way to do all that it asks for.
            TokenizerError: llguidance isn't installed, or can't use the tokenizer.
        """
        self._load()
        package, matcher = self._package, None
        limits = package.LLParserLimits(
            initial_lexer_fuel=_FUEL, max_grammar_size=_PRODUCTIONS, verbose_errors=False
        )
        try:
            text = _convert(package.LLMatcher, grammar)
            matcher = package.LLMatcher(self._read, text, log_level=0, limits=limits)
            if not matcher.is_error():  # some of what is too much shows at the first token
                matcher.compute_ff_tokens()
                if not matcher.is_stopped():
                    matcher.compute_bitmask()
            problem = matcher.get_error()
        except Exception as error:  # ValueErrors for what is no schema at all
            problem = str(error) or type(error).__name__
        if problem or matcher is None:
            if grammar.name:  # rules that aren't the user's
                problem = _RULES.sub("", problem)
            text = "{} can't be used: {}".format(grammar.name or grammar.kind, _tidy(problem))
            raise ConstraintError(shorten(text, _LONGEST))
        return GrammarConstraint(matcher, self._vocabulary)

    def make_call(self, form: ToolFormat, tools: Mapping[str, Any]) -> "GrammarConstraint":
        """A constraint for a text that is a call of one of some tools; raises what ``make`` does.

        Args:
            form: form of calls.
            tools: schemas of the arguments by the tools' names.
        """
        size, read = 0, {}
        for name, parameters in tools.items():
            # Each by itself: of several tools that may be called, one is.
            text, read[name] = _read_schema(parameters, name_tool(name))
            size += len(text.encode())
            if size > MAX_SCHEMA_BYTES:
                text = "the schemas of these tools have {} bytes or more, the limit is {}"
                raise ConstraintError(text.format(size, MAX_SCHEMA_BYTES))
        schema = make_call_schema(form, read)
        check_multiples(schema, _TOOLS)
        parts = [self.write_literal(form.before), "call", self.write_literal(form.after)]
        rules = "start: {}\ncall: %json {}".format(
            " ".join(filter(None, parts)), json.dumps(schema, ensure_ascii=False)
        )
        try:
            return self.make(Grammar(LARK, rules, _TOOLS))
        except ConstraintError:
            # Rules are nothing that users wrote: the tool at fault is named, with its own error.
            for name, parameters in read.items():
                self._check_tool(name, make_call_schema(form, {name: parameters}))
            raise

    def _check_tool(self, name: str, schema: Mapping[str, Any]) -> None:
        matchers = self._package.LLMatcher
        text = json.dumps(schema, ensure_ascii=False)
        try:
            problem = matchers.validate_grammar(_convert(matchers, Grammar(JSON_SCHEMA, text)))
        except Exception as error:
            problem = str(error)
        if problem:
            problem = _tidy(problem).replace("json-schema:///", "").replace("/$defs/tool0", "")
            text = "{} can't be used: {}".format(name_tool(name), problem)
            raise ConstraintError(shorten(text, _LONGEST))

    def write_literal(self, text: str) -> str:
        """A text as Lark's rules name it: a quoted one, in which tokens of their own stand by their numbers."""
        self._load()
        parts, plain = [], ""
        decoder = self._tokenizer.get_added_tokens_decoder()
        added = {token.content: number for number, token in decoder.items()}
        marks = sorted((mark for mark in added if mark), key=len, reverse=True)
        at = 0
        while at < len(text):
            mark = next((mark for mark in marks if text.startswith(mark, at)), None)
            if mark is None or not self._read.is_special_token(added[mark]):
                plain += text[at : at + 1]
                at += 1
                continue
            parts += [_quote(plain)] if plain else []
            parts.append("<[{}]>".format(added[mark]))
            plain, at = "", at + len(mark)
        parts += [_quote(plain)] if plain else []
        return " ".join(parts)

    def _load(self) -> None:
        with self._lock:
            if self._read is None:
                self._package = _import_llguidance()
                self._read = self._read_tokenizer()

    def _read_tokenizer(self) -> Any:
        if not _has_bytes(json.loads(self._tokenizer.to_str())):
            raise TokenizerError(
                "this model's tokenizer doesn't write its tokens as bytes, so no grammar can follow them",
                "write a constraint of your own, with mask() and accept(); or leave it out",
            )
        count = max(self._vocabulary, self._tokenizer.get_vocab_size())
        try:
            return self._package.LLTokenizer(
                self._tokenizer.to_str(), n_vocab=count, eos_token=self._eos or None
            )
        except Exception as error:  # whatever it can't read
            text = "llguidance can't use this model's tokenizer: {}".format(error)
            raise TokenizerError(shorten(text, _LONGEST)) from None


class GrammarConstraint(Unique):
    """A constraint by a grammar; see ``Constraint``."""

    def __init__(self, matcher: Any, vocabulary: int) -> None:
        """``matcher`` is one of llguidance, at its beginning."""
        self._matcher = matcher
        self._vocabulary = vocabulary

    def mask(self) -> "NDArray[np.uint32]":
        """The tokens that may come next, as bits."""
        words = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check()
        return words[: -(-self._vocabulary // 32)]

    def accept(self, token: int) -> None:
        """Takes the next token; raises ConstraintError where the grammar doesn't allow it."""
        if not self._matcher.consume_token(token):
            self._check()
            raise ConstraintError("the grammar doesn't allow the token {}".format(token))

    def forced(self) -> List[int]:
        """The tokens that must come next."""
        tokens: List[int] = self._matcher.compute_ff_tokens()
        # Bytes that must come may have no tokens here.
        return tokens[: self._matcher.validate_tokens(tokens)] if tokens else []

    def ended(self) -> bool:
        """Whether the text is complete; raises ConstraintError where llguidance gave up."""
        if not self._matcher.is_stopped():
            return False
        self._check()
        reason = self._matcher.stop_reason()
        if reason not in _WHOLE:
            raise ConstraintError("the grammar can't be followed any further: {}".format(reason))
        return True

    def _check(self) -> None:
        if self._matcher.is_error():
            text = "the grammar can't be followed: {}".format(_tidy(self._matcher.get_error()))
            raise ConstraintError(shorten(text, _LONGEST))


def _convert(matchers: Any, grammar: Grammar) -> str:
    """A grammar in llguidance's own form."""
    if grammar.kind == JSON_SCHEMA:
        # Models may repeat white space for ever.
        flexible = {"whitespace_flexible": False}
        text: str = matchers.grammar_from_json_schema(grammar.text, defaults=flexible)
    elif grammar.kind == REGEX:
        text = matchers.grammar_from_regex(grammar.text)
    else:
        text = matchers.grammar_from_lark(grammar.text)
    return text


def _tidy(text: str) -> str:
    """An error of llguidance in one line."""
    line = " ".join(text.replace("<non-verbose/>", "").split())
    return "this model has no tokens that write it" if line == "NoExtensionBias" else line


def _has_bytes(document: Dict[str, Any]) -> bool:
    """Whether a tokenizer's tokens are bytes: those of its decoder, or of byte tokens."""
    decoder = document.get("decoder") or {}
    decoders = [decoder, *(decoder.get("decoders") or [])]
    return any(item.get("type") in ("ByteLevel", "ByteFallback") for item in decoders)


def _import_llguidance() -> Any:
    try:
        import llguidance
    except ImportError:
        raise TokenizerError(
            "JSON schemas, regular expressions and grammars need the Python package llguidance, which isn't "
            "installed here",
            "pip install llguidance; or write a constraint of your own, with mask() and accept()",
        ) from None
    return llguidance
