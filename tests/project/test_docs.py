"""The documents say what is true: links lead somewhere, commands exist, examples run."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import click
import pytest

from edgecompile import errors
from edgecompile.bundle.verify import RUNTIME_COMMAND
from edgecompile.cli import _EPILOG, DEVICE_COMMANDS, cli
from edgecompile.runtime import __main__ as device
from edgecompile.runtime.base import errors as device_errors
from edgecompile.runtime.cpu.loaders import PACKAGES
from edgecompile.runtime.model import model, open_bundle
from edgecompile.server import errors as server_errors
from edgecompile.server.http.metrics import Metrics
from edgecompile.server.protocol.openapi import make_document
from edgecompile.server.serving import Repository
from tests.agreement import CHECKED_RULES, LEFT

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"
DOCS = REPOSITORY / "docs"
PAGES = [
    README,
    *sorted(DOCS.glob("*.md")),
    REPOSITORY / "edgecompile" / "runtime" / "FORMAT.md",
]

#: Also the pages whose blocks aren't commands for users.
LINKING = [
    *PAGES,
    *sorted((DOCS / "benchmarks").glob("*.md")),
    *(REPOSITORY / name for name in ("CONTRIBUTING.md", "RELEASE.md", "SECURITY.md")),
]
#: Folders that pages leave out where they name files of the code.
ROOTS = (
    ".", "edgecompile", "edgecompile/runtime", "edgecompile/runtime/native", "edgecompile/backends",
)  # fmt: skip


def page_id(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of one language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def rows(page: Path, heading: str, second: str = "") -> list[list[str]]:
    """The cells of the table whose first heading is ``heading``, and whose second one begins with ``second``."""
    text = page.read_text(encoding="utf-8")
    match = re.search(
        rf"^\| {heading} \| {second}.*\n\|[-|]+\|\n((?:\|.*\n?)+)", text, re.MULTILINE
    )
    assert match is not None, f"{page.name} has no table of {heading}"
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in match[1].splitlines()]


def commands() -> Iterator[tuple[str, str]]:
    """(page, command line) of every line of every shell block."""
    for page in PAGES:
        for block in blocks(page, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                if line.strip():
                    yield page_id(page), line.split(" | ")[-1].strip()


COMMANDS = list(commands())
KNOWN = (
    "sudo",
    "export",
    "source",
    "python3",
    "scripts/",
    "benchmarks/",
    ".venv/",
    "edgecompile",
    "cut",
)


def load_script(name: str) -> ModuleType:
    path = REPOSITORY / "scripts" / name
    loader = SourceFileLoader(name.replace("-", "_").removesuffix(".py"), str(path))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", LINKING, ids=page_id)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target):
            name, _, anchor = target.partition("#")
            found = page.parent / name if name else page
            assert found.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(found), f"{page.name}: {target}"


@functools.cache
def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = (heading.replace("`", "") for heading in re.findall(r"^#+ (.+)$", text, flags=re.M))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", LINKING, ids=page_id)
def test_paths_that_are_named_exist(page: Path) -> None:
    """Folders and files of the repository, and files of the code below the folders in ``ROOTS``."""
    text = page.read_text(encoding="utf-8").replace("/NAME.", "/*.")  # stands for any name
    for name in re.findall(
        r"`((?:scripts|tests|docs|profiles|edgecompile|docker|examples|benchmarks|\.ci)/[\w./-]*)`",
        text,
    ):
        assert (REPOSITORY / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"`([\w-]+(?:/[\w-]+)+\.(?:py|cpp|h|toml))`", text):
        folders = [REPOSITORY / root for root in ROOTS]
        if any((folder / name.split("/")[0]).is_dir() for folder in folders):
            assert any((folder / name).is_file() for folder in folders), f"{page.name}: {name}"


@pytest.mark.parametrize("page", LINKING, ids=page_id)
def test_commands_within_sentences_exist(page: Path) -> None:
    """Their names, and the options that stand beside them."""
    for words in re.findall(r"`edgecompile ([a-z][^`]*)`", page.read_text(encoding="utf-8")):
        command: click.Command = cli
        for word in words.split():
            if not isinstance(command, click.Group):
                break
            found = command.get_command(click.Context(cli), word)
            assert found is not None, f"{page.name}: edgecompile {words}"
            command = found
        known = {option for item in command.params for option in item.opts} | {"--help", "--json"}
        if command.name not in DEVICE_COMMANDS:
            unknown = {*re.findall(r"(?<!\S)--[\w-]+", words)} - known
            assert not unknown, f"{page.name}: edgecompile {words}"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    waiting = [README]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        found = re.findall(r"\]\(([^)\s:#]+)\)", page.read_text(encoding="utf-8"))
        waiting += [(page.parent / target).resolve() for target in found]
    assert {page for page in PAGES if page not in reached} == set()


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=lambda value: value)
def test_commands_and_their_options_exist(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]) and len(words) > 1:
        del words[0]
    if ">" in words:
        words = words[: words.index(">")]
    if page.startswith(("docs/tutorial", "docs/install")) and not words[0].startswith(KNOWN):
        return  # test_tutorial.py, test_tutorial_board.py or test_wheels.py runs it
    assert words[0].startswith(KNOWN), f"{page}: nothing checks the command {words[0]}"
    if words[0].startswith("scripts/"):
        assert (REPOSITORY / words[0]).stat().st_mode & 0o100, f"{words[0]} can't be run"
    elif words[:2] == ["python3", "-m"] and words[2] in (RUNTIME_COMMAND, *PACKAGES.values()):
        device.make_parser().parse_args(words[3:])
    elif words[0] == "python3" and words[1].endswith(".ecb") and not words[2].endswith(".py"):
        device.make_parser(bundle=words[1]).parse_args(words[2:])
    elif words[0] == "edgecompile":
        parse_command(words[1:])


def test_no_code_block_runs_a_bundle_by_a_way_that_compares_nothing() -> None:
    """With its runtime/ on PYTHONPATH, as docs/security.md says."""
    for page in PAGES:
        for block in blocks(page, r"\w*"):
            assert not re.search(r"PYTHONPATH=\S*\.ecb/runtime", block), page_id(page)


def parse_command(words: list[str]) -> None:
    """Lets Click read the command line, options and their types included, without running it."""
    command: click.Command = cli
    context = click.Context(cli, info_name="edgecompile", **cli.context_settings)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]}"
        context = click.Context(command, info_name=command.name, parent=context)
        command, words = found, words[1:]
    if command.name in DEVICE_COMMANDS:
        device.make_parser().parse_args([command.name, *words])
    command.make_context(command.name, list(words), parent=context)


def test_unknown_options_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse_command(["build", "model", "--lenghts", "x"])
    with pytest.raises(click.UsageError):
        parse_command(["targets", "show", "--hash", "x"])


def test_the_two_commands_of_the_readme() -> None:
    assert blocks(README, "sh")[0].split() == ["scripts/demo", "scripts/test"]


def test_cli_page_is_what_the_commands_say() -> None:
    written = load_script("write-cli-docs").render()
    assert (DOCS / "cli.md").read_text(encoding="utf-8") == written, "run scripts/write-cli-docs"


def test_chart_and_table_of_the_readme_are_those_of_the_record() -> None:
    script = load_script("write-chart")
    assert (DOCS / "measured.svg").read_text(encoding="utf-8") == script.render(), (
        "run scripts/write-chart"
    )
    means = {script.NAMES[name]: mean for name, (_, mean) in script.read_means().items()}
    shown = dict(re.findall(r"^\| ([^|]+) \| ([\d.]+) \|", README.read_text(), re.MULTILINE))
    for name, mean in means.items():
        assert float(shown[name]) == round(mean, 1)


def all_errors(base: type[errors.EdgecompileError]) -> Iterator[type[errors.EdgecompileError]]:
    yield base
    for child in base.__subclasses__():
        yield from all_errors(child)


def test_exit_codes_are_those_of_the_classes() -> None:
    found = {
        (str(item.exit_code), f"`{item.__name__}`", side)
        for item in all_errors(errors.EdgecompileError)
        for module, side in (
            (device_errors, "device"),
            (server_errors, "server"),
            (errors, "build"),
        )
        if item.__module__ == module.__name__
    }
    assert {tuple(row[:3]) for row in rows(DOCS / "errors.md", "exit code")} == found


def test_every_error_has_an_exit_code_of_its_own() -> None:
    codes = [row[0] for row in rows(DOCS / "errors.md", "exit code")]
    assert sorted(set(codes), key=int) == codes
    assert not {"0", "2", "70", "74", "129", "130", "141", "143"} & set(codes)


def test_exit_codes_lie_in_the_ranges_that_the_command_line_names() -> None:
    ranges = [(int(a), int(b)) for a, b in re.findall(r"(\d+)-(\d+)", _EPILOG)]
    for code, name, *_ in rows(DOCS / "errors.md", "exit code")[1:]:  # but EdgecompileError's
        assert any(lo <= int(code) <= hi for lo, hi in ranges), name


def test_exit_codes_that_are_called_free_are_free() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    found = re.search(r"Free are (\d+) to (\d+) for [^,]+, (\d+) to (\d+) for devices", text)
    assert found is not None
    lo, hi, least, most = map(int, found.groups())
    free = {*range(lo, hi + 1), *range(least, most + 1)}
    cells = [row[0] for row in rows(DOCS / "errors.md", "exit code")]
    others = [row[0] for row in rows(DOCS / "errors.md", "exit code", "cause")]
    used = {int(code) for cell in (*cells, *others) for code in cell.split(", ")}
    assert {0, 11, 53, 70, 143} <= used and used.isdisjoint(free)
    assert lo - 1 in used and least - 1 in used, "a code between is free, too"


def test_metrics_of_the_server_are_documented() -> None:
    text = Metrics().text(Repository([]), 0, 0, draining=False).decode()
    names = re.findall(r"^# TYPE edgecompile(\w+) ", text, re.MULTILINE)
    documented = [
        name.strip("`") for row in rows(DOCS / "server.md", "metric") for name in row[0].split(", ")
    ]
    assert sorted(documented) == sorted(names)


def test_environment_variables_are_documented() -> None:
    """The page has the variables that the sources name, and no others."""
    sources = [
        path.read_text("utf-8")
        for path in (REPOSITORY / "edgecompile").rglob("*")
        if path.suffix in (".py", ".cpp", ".h")
    ]
    read = {name for text in sources for name in re.findall(r'"(EDGECOMPILE_[A-Z_]+)"', text)}
    page = (DOCS / "variables.md").read_text("utf-8")
    assert read == {*re.findall(r"`(EDGECOMPILE_[A-Z_]+)`", page)}


def test_addresses_of_the_server_are_documented() -> None:
    model = "/v2/models/NAME[/versions/V]"  # for which "…" stands behind it
    documented = set()
    for row in rows(DOCS / "server.md", "address"):
        for path in re.findall(r"`(?:GET |POST )?([/…][^` ]*)`", " ".join(row)):
            whole = path.replace("…", model)
            plain, optional = re.sub(r"\[.*?\]", "", whole), re.sub(r"[][]", "", whole)
            documented |= {plain, optional}
    paths = make_document("0", keys=False)["paths"]
    names = {"{model}": "NAME", "{version}": "V"}
    actual = {re.sub(r"\{\w+\}", lambda match: names[match[0]], path) for path in paths}
    assert documented == actual


def test_rules_that_the_c_runtime_leaves_to_its_caller_are_documented() -> None:
    format_page = (REPOSITORY / "edgecompile" / "runtime" / "FORMAT.md").read_text(encoding="utf-8")
    rules = set(re.findall(r"^- `\[(generation-\w+)\]`", format_page, re.MULTILINE))
    _, _, text = (DOCS / "c-runtime.md").read_text(encoding="utf-8").partition("## Differences")
    named = re.findall(r"`((?:generation|weights)-\w+)`", text)
    assert sorted(named) == sorted(rules - CHECKED_RULES | LEFT)


def test_arguments_of_open_bundle_are_documented() -> None:
    parameters = list(inspect.signature(open_bundle.open_bundle).parameters)[1:]
    documented = [row[0].strip("`") for row in rows(DOCS / "runtime.md", "argument")]
    assert documented == parameters
    signature = ", ".join(
        f'{name}="{item.default}"' if isinstance(item.default, str) else f"{name}={item.default}"
        for name, item in inspect.signature(open_bundle.open_bundle).parameters.items()
        if item.default is not item.empty
    )
    text = (DOCS / "runtime.md").read_text(encoding="utf-8")
    assert f"`open_bundle(path, *, {signature})`" in text


#: Members of Model for the runtime's own classes, such as sessions.
OF_THE_RUNTIME = {
    "batch_texts", "bind_batch", "bind", "gpu", "hold", "manifest", "manifest_sha256", "masks_logits", "own_encoder", "reset_stats", "run_bound", "schedule_stats",
    "stream_prompt", "trim", "with_threads",
}  # fmt: skip


def test_members_of_model_are_documented() -> None:
    members = {name for name in dir(model.Model) if not name.startswith("_")}
    members -= OF_THE_RUNTIME
    documented = {
        name.strip("`").partition("(")[0]
        for row in rows(DOCS / "runtime.md", "member")
        for name in row[0].split(", `")
    }
    assert documented == members


def test_commands_of_the_device_are_documented() -> None:
    (choices,) = [a.choices for a in device.make_parser()._actions if isinstance(a.choices, dict)]
    shared = {"--json", "--debug", "--variant", "--threads", "--verify", "--help"}
    actual = {
        name: {o for a in sub._actions for o in a.option_strings if o.startswith("--")} - shared
        for name, sub in choices.items()
        if name not in device._HIDDEN
    }
    documented = {
        row[0].strip("`"): set(re.findall(r"--[\w-]+", row[2]))
        for row in rows(DOCS / "runtime.md", "command")
    }
    assert documented == actual


def test_keys_of_a_factory_are_documented() -> None:
    pytest.importorskip("torch")
    from edgecompile.loaders.factory_specs import ModelSpec

    documented = [row[0].strip("`") for row in rows(DOCS / "models.md", "key")]
    assert documented == [field.name for field in dataclasses.fields(ModelSpec)]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The files of docs/models.md, each named by its first line."""
    for block in blocks(DOCS / "models.md", "python"):
        match = re.match(r"# (\w+\.py)\n", block)
        assert match is not None, block
        (tmp_path / match[1]).write_text(block)
    return tmp_path


@pytest.mark.slow
def test_models_of_the_examples_load_and_agree(example: Path) -> None:
    torch = pytest.importorskip("torch")
    from edgecompile.loaders.load import load_model

    subprocess.run([sys.executable, "save.py"], cwd=example, check=True, capture_output=True)
    made = load_model(f"{example / 'net.py'}:make")
    saved = load_model(example / "net.pt2")
    assert made.inputs[0].shape == ("batch", "length", 40)
    assert [output.name for output in made.outputs] == ["scores"]
    assert saved.inputs[0].shape == (1, "length", 40)
    for loaded in (made, saved):
        assert loaded.length_axis == "length"
        assert (loaded.axes["length"].lo, loaded.axes["length"].hi) == (1, 500)
        result = loaded.run({"frames": torch.ones(1, 7, 40)})
        assert [tensor.shape for tensor in result.values()] == [(1, 12)]


#: Tiny folders that stand for those of the examples: kind and head of tests/factories/folders.py.
STANDING = {
    "./bert-base": ("bert", "Model", ["sentence_embedding"]),
    "./sentiment": ("distilbert", "ForSequenceClassification", ["scores"]),
    "./names": ("bert", "ForTokenClassification", ["logits"]),
    "./squad": ("bert", "ForQuestionAnswering", ["start_scores", "end_scores"]),
    "./qwen": ("gpt2", "LMHeadModel", ["logits"]),
    "./t5-small": ("t5", "ForConditionalGeneration", None),
}


@pytest.mark.parametrize("line", [line for page, line in COMMANDS if page == "docs/models.md"])
def test_folders_of_the_examples_load_with_their_options(line: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from edgecompile.cli.build import command
    from edgecompile.loaders.load import load_model
    from edgecompile.models.options import LoadOptions
    from tests.factories.folders import write_model

    words = shlex.split(line)
    if words[:2] != ["edgecompile", "build"] or words[2] not in STANDING:
        pytest.skip("no folder of texts")
    kind, head, outputs = STANDING[words[2]]
    given = command.make_context("build", words[2:]).params
    known = {field.name for field in dataclasses.fields(LoadOptions)} - {
        "max_length",
        "max_context",
    }
    options = {name: value for name, value in given.items() if name in known}
    model = load_model(write_model(tmp_path, kind, head), **options)
    if outputs is not None:
        assert [spec.name for spec in model.outputs] == outputs
    else:
        wanted = "sentence_embedding" if "--pooling" in words else "last_hidden_state"
        assert [spec.name for spec in model.outputs] == [wanted]
    assert ("start_scores" in (outputs or [])) == (
        "token_type_ids" in {i.name for i in model.inputs}
    )
    assert (model.generation is not None) == (words[2] == "./qwen" and "logits" not in words)


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("names", "the other\ncat cat\nsat other\non other\na other\nmat other\n"),
        ("answer", "cat sat\n"),
    ],
)
def test_programs_of_the_examples_for_texts_run(
    example: Path,
    program: str,
    printed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """On a stand-in for the bundle that answers with made-up scores: no model is run."""
    pytest.importorskip("tokenizers")
    from tests.runtime.texts import StandIn

    monkeypatch.setattr(
        "edgecompile.runtime.open_bundle", lambda path: StandIn(example), raising=False
    )
    runpy.run_path(str(example / f"{program}.py"))
    assert capsys.readouterr().out == printed


def test_the_example_of_two_axes_loads(example: Path) -> None:
    torch = pytest.importorskip("torch")
    from edgecompile.loaders.load import load_model

    model = load_model(f"{example / 'pair.py'}:make")
    assert model.length_axis == "length" and model.axes["query_length"].hi == 32
    sizes = {"batch": 1, "query_length": 3, "length": 17}
    assert model.run(model.make_example(sizes))["score"].shape == torch.Size([1])


@pytest.mark.slow
def test_the_example_builds_and_runs(example: Path, device_python: str) -> None:
    (line,) = [
        line
        for block in blocks(DOCS / "models.md", "sh")
        for line in block.splitlines()
        if "net.py:make" in line
    ]
    (example / "lengths.txt").write_text("".join(f"{n}\n" for n in range(20, 400, 7)))
    words = shlex.split(line)
    command = [sys.executable, "-m", *words, "--target", "cpu-x86-64-v3", "--quiet"]
    built = subprocess.run(command, cwd=example, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    bundle = example / words[words.index("--output") + 1]
    selftest = subprocess.run(
        [device_python, "-m", "edgecompile.runtime", "selftest", str(bundle)],
        cwd=bundle / "runtime",
        capture_output=True,
        text=True,
    )
    assert selftest.returncode == 0, selftest.stdout + selftest.stderr


@pytest.mark.parametrize("page", [README, DOCS / "runtime.md"], ids=page_id)
def test_the_program_for_a_device_runs(page: Path, tiny_bundle: Path, device_python: str) -> None:
    (program,) = blocks(page, "python")
    # The example is about MiniLM; the tests' own bundle has fewer words and another output.
    for old, new in (
        ('"minilm.ecb"', repr(str(tiny_bundle))),
        ("101, 7592, 2088, 102", "1, 5, 6, 2"),
        ("sentence_embedding", "last_hidden_state"),
    ):
        assert old in program
        program = program.replace(old, new)
    done = subprocess.run(
        [device_python, "-c", program], cwd=tiny_bundle / "runtime", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(1, 4, 16)\n"
