"""docker/jetson.Dockerfile: its form, and its entrypoint with a fake Python. No image of it was built here."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from edgecompile.runtime import __main__ as device
from tests.project.test_docs import rows

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENT = REPOSITORY / "docs" / "variables.md"
JETSON = REPOSITORY / "docker" / "jetson.Dockerfile"
INSIDE = "/opt/model.ecb"


class Instruction(NamedTuple):
    word: str
    rest: str


def parse(path: Path) -> list[Instruction]:
    """The instructions of a Dockerfile, comments left out and continued lines joined."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n", "", "\n".join(lines))
    words = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [Instruction(word, rest) for word, rest in words]


def values(path: Path, word: str) -> list[str]:
    return [item.rest for item in parse(path) if item.word == word]


def command(path: Path, word: str) -> list[str]:
    """ENTRYPOINT or CMD: the only one, and without a shell that would swallow signals."""
    (text,) = values(path, word)
    found = json.loads(text)
    assert isinstance(found, list) and all(isinstance(item, str) for item in found)
    return found


def default_base(path: Path) -> str:
    return parse(path)[0].rest.partition("=")[2]


class TestDockerfile:
    def test_the_base_can_be_chosen_and_names_a_version(self) -> None:
        first, second = parse(JETSON)[:2]
        assert first.word == "ARG" and first.rest.startswith("BASE=")
        assert second == ("FROM", "${BASE}")
        assert [item.word for item in parse(JETSON)].count("FROM") == 1
        tag = default_base(JETSON).rpartition(":")[2]
        assert re.search(r"\d|bookworm|jammy|noble|trixie", tag), f"{tag} names no version"
        assert "latest" not in JETSON.read_text()

    def test_the_jetson_s_base_is_nvidia_s_for_jetpack_6(self) -> None:
        assert default_base(JETSON) == "nvcr.io/nvidia/l4t-tensorrt:r10.3.0-runtime"

    def test_it_ends_as_a_user_with_a_number(self) -> None:
        words = [item.word for item in parse(JETSON)]
        (user,) = values(JETSON, "USER")
        assert int(user) >= 1000
        assert words.index("USER") > max(
            i for i, word in enumerate(words) if word in ("RUN", "COPY")
        )
        assert f"--uid {user} " in " ".join(values(JETSON, "RUN"))

    def test_it_fetches_packages_of_the_distribution_only(self) -> None:
        code = " ".join(item.rest for item in parse(JETSON))
        assert not re.search(r"https?://|\b(curl|wget|pip3?|git|ADD)\b", code)
        installs = re.findall(r"apt-get install[^&;]*", code)
        assert installs and all("--no-install-recommends" in line for line in installs)

    def test_it_holds_no_secret(self) -> None:
        names = re.findall(r"(\w+)=", " ".join(values(JETSON, "ARG") + values(JETSON, "ENV")))
        assert names
        assert not [
            n for n in names if re.search(r"PASS|SECRET|TOKEN|KEY|CREDENTIAL|PROXY", n, re.I)
        ]
        assert "--mount=type=secret" not in JETSON.read_text()

    def test_what_is_copied_is_the_bundle(self) -> None:
        # The context is the bundle's folder; there is no other path that could be missing.
        assert values(JETSON, "COPY") == [f". {INSIDE}"]
        (settings,) = values(JETSON, "ENV")
        # The bundle's runtime, in a copy that was made once it had been compared.
        assert "PYTHONPATH=/opt/runtime" in settings.split()
        compare, copy, *_ = values(JETSON, "RUN")[-1].split(" && ")
        assert compare.startswith(f"python3 -I {INSIDE}/__main__.py ")
        assert copy.strip() == f"cp -R {INSIDE}/runtime /opt/runtime"
        # python3 -m looks in the working directory before PYTHONPATH.
        assert values(JETSON, "WORKDIR") == ["/"]

    def test_byte_code_stays_outside(self) -> None:
        ignored = JETSON.with_name(JETSON.name + ".dockerignore").read_text().splitlines()
        assert [line for line in ignored if not line.startswith("#")] == ["**/__pycache__"]

    def test_its_commands_exist(self) -> None:
        whole = command(JETSON, "ENTRYPOINT") + command(JETSON, "CMD")
        assert whole[-2:] == ["selftest", INSIDE]
        assert whole[-5:-2] == ["python3", "-m", "edgecompile.runtime"]
        device.make_parser().parse_args(whole[-2:])
        device.make_parser().parse_args(["finish", INSIDE])

    def test_variables_are_documented(self) -> None:
        named = set(re.findall(r"^#   (EDGECOMPILE_\w+) ", JETSON.read_text(), re.M))
        table = " ".join(row[0] for row in rows(DOCUMENT, "variable"))
        assert named < set(re.findall(r"`(\w+)`", table))
        assert set(re.findall(r"EDGECOMPILE_\w+", JETSON.read_text())) == named


class TestFirstStartOnAJetson:
    """The entrypoint's shell program, with a fake python3 that writes down what it is asked."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        fake = tmp_path / "python3"
        fake.write_text(
            '#!/bin/sh\necho "$@" >>"$LOG"\n'
            'case "$*" in\n*finish*) echo engine; ${SLOW:-} ; exit "${CODE:-0}" ;;\nesac\necho served\n'
        )
        fake.chmod(0o755)
        return tmp_path

    def start(self, folder: Path, **more: str) -> subprocess.Popen[str]:
        path = f"{folder}:{os.environ['PATH']}"
        environment = {"PATH": path, "LOG": str(folder / "log"), **more}
        return subprocess.Popen(
            command(JETSON, "ENTRYPOINT") + command(JETSON, "CMD"),
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    FINISH = f"-m edgecompile.runtime finish {INSIDE}"
    SELFTEST = f"-m edgecompile.runtime selftest {INSIDE}"

    def asked(self, folder: Path) -> list[str]:
        return (folder / "log").read_text().splitlines()

    def test_it_finishes_and_then_becomes_the_command(self, folder: Path) -> None:
        process = self.start(folder)
        out, err = process.communicate()
        assert (process.returncode, out, err) == (0, "served\n", "engine\n")
        assert self.asked(folder) == [self.FINISH, self.SELFTEST]

    def test_without_an_engine_nothing_is_run(self, folder: Path) -> None:
        process = self.start(folder, CODE="63")
        assert process.communicate()[0] == ""
        assert process.returncode == 63
        assert self.asked(folder) == [self.FINISH]

    def test_unless_the_cpu_was_asked_for(self, folder: Path) -> None:
        process = self.start(folder, CODE="62", EDGECOMPILE_FALLBACK="cpu")
        assert process.communicate()[0] == "served\n"
        assert process.returncode == 0

    def test_stopping_it_ends_what_finishes(self, folder: Path) -> None:
        process = self.start(folder, SLOW="exec sleep 60")
        while not (folder / "log").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        # Ends only when the sleeper, which holds the pipes, is gone too.
        assert process.communicate()[0] == ""
        assert process.returncode == 143
        assert self.asked(folder) == [self.FINISH]
