"""docker/ and scripts/container: their form, and what they do with fake engines.

A real image is built and run in tests/deploy/test_container_image.py.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from edgecompile.runtime import __main__ as device
from tests.project.test_docs import rows
from tests.runtime.bundles import DummyBundle

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "scripts" / "container"
DOCUMENT = REPOSITORY / "docs" / "containers.md"
DOCKERFILES = sorted((REPOSITORY / "docker").glob("*.Dockerfile"))
CPU, JETSON = (REPOSITORY / "docker" / f"{name}.Dockerfile" for name in ("cpu", "jetson"))
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


every_dockerfile = pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.stem)


class TestDockerfiles:
    def test_there_is_one_for_each_target(self) -> None:
        assert DOCKERFILES == [CPU, JETSON]

    @every_dockerfile
    def test_the_base_can_be_chosen_and_names_a_version(self, path: Path) -> None:
        first, second = parse(path)[:2]
        assert first.word == "ARG" and first.rest.startswith("BASE=")
        assert second == ("FROM", "${BASE}")
        assert [item.word for item in parse(path)].count("FROM") == 1
        tag = default_base(path).rpartition(":")[2]
        assert re.search(r"\d|bookworm|jammy|noble|trixie", tag), f"{tag} names no version"
        assert "latest" not in path.read_text()

    def test_the_jetson_s_base_is_nvidia_s_for_jetpack_6(self) -> None:
        assert default_base(JETSON) == "nvcr.io/nvidia/l4t-tensorrt:r10.3.0-runtime"

    @every_dockerfile
    def test_it_ends_as_a_user_with_a_number(self, path: Path) -> None:
        words = [item.word for item in parse(path)]
        (user,) = values(path, "USER")
        assert int(user) >= 1000
        assert words.index("USER") > max(
            i for i, word in enumerate(words) if word in ("RUN", "COPY")
        )
        assert f"--uid {user} " in " ".join(values(path, "RUN"))

    @every_dockerfile
    def test_it_fetches_packages_of_the_distribution_only(self, path: Path) -> None:
        code = " ".join(item.rest for item in parse(path))
        assert not re.search(r"https?://|\b(curl|wget|pip3?|git|ADD)\b", code)
        installs = re.findall(r"apt-get install[^&;]*", code)
        assert installs and all("--no-install-recommends" in line for line in installs)

    @every_dockerfile
    def test_it_holds_no_secret(self, path: Path) -> None:
        names = re.findall(r"(\w+)=", " ".join(values(path, "ARG") + values(path, "ENV")))
        assert names
        assert not [
            n for n in names if re.search(r"PASS|SECRET|TOKEN|KEY|CREDENTIAL|PROXY", n, re.I)
        ]
        assert "--mount=type=secret" not in path.read_text()

    @every_dockerfile
    def test_what_is_copied_is_the_bundle(self, path: Path) -> None:
        # The context is the bundle's folder; there is no other path that could be missing.
        assert values(path, "COPY") == [f". {INSIDE}"]
        (settings,) = values(path, "ENV")
        # The bundle's runtime, in a copy that was made once it had been compared.
        assert "PYTHONPATH=/opt/runtime" in settings.split()
        compare, copy, *_ = values(path, "RUN")[-1].split(" && ")
        assert compare.startswith(f"python3 -I {INSIDE}/__main__.py ")
        assert copy.strip() == f"cp -R {INSIDE}/runtime /opt/runtime"
        # python3 -m looks in the working directory before PYTHONPATH.
        assert values(path, "WORKDIR") == ["/"]

    @every_dockerfile
    def test_byte_code_stays_outside(self, path: Path) -> None:
        ignored = path.with_name(path.name + ".dockerignore").read_text().splitlines()
        assert [line for line in ignored if not line.startswith("#")] == ["**/__pycache__"]

    @every_dockerfile
    def test_its_commands_exist(self, path: Path) -> None:
        whole = command(path, "ENTRYPOINT") + command(path, "CMD")
        assert whole[-2:] == ["selftest", INSIDE]
        assert whole[-5:-2] == ["python3", "-m", "edgecompile.runtime"]
        device.make_parser().parse_args(whole[-2:])
        device.make_parser().parse_args(["finish", INSIDE])

    @every_dockerfile
    def test_variables_are_documented(self, path: Path) -> None:
        named = set(re.findall(r"^#   (EDGECOMPILE_\w+) ", path.read_text(), re.M))
        column = ("cpu", "jetson").index(path.stem) + 1
        documented = {
            row[0].strip("`") for row in rows(DOCUMENT, "variable") if row[column] == "yes"
        }
        assert named == documented
        assert set(re.findall(r"EDGECOMPILE_\w+", path.read_text())) == named


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


FAKE_ENGINE = """#!/bin/sh
# A fake engine: writes down what it is asked; FAILS lists "engine word" that fail.
name=$(basename "$0")
case "$FAILS" in *"|$name $1|"*) exit 1 ;; esac
[ "$1" = info ] || echo "$name $*" >>"$LOG"
"""


class TestScript:
    def make_bundle(self, tmp_path: Path, tensorrt: bool = False) -> Path:
        made = DummyBundle(tmp_path / "My Model.ecb")
        if tensorrt:
            made.add_tensorrt()
        made.write()
        runtime = made.folder / "runtime" / "edgecompile" / "runtime"
        runtime.mkdir(parents=True)
        (runtime / "__main__.py").write_text("")
        for path in [made.folder, *made.folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        return made.folder

    @pytest.fixture
    def bundle(self, tmp_path: Path) -> Path:
        return self.make_bundle(tmp_path)

    def run(
        self, tmp_path: Path, *arguments: str | Path, fails: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        engines = tmp_path / "engines"
        engines.mkdir(exist_ok=True)
        for name in ("docker", "podman", "buildah"):
            (engines / name).write_text(FAKE_ENGINE)
            (engines / name).chmod(0o755)
        environment = {
            # Without /usr/sbin: no Debian root can be made in these tests.
            "PATH": f"{engines}:/usr/bin:/bin",
            "LOG": str(tmp_path / "log"),
            "FAILS": "".join(f"|{name}|" for name in fails),
            "EDGECOMPILE_PYTHON": sys.executable,
            "TMPDIR": str(tmp_path),
        }
        return subprocess.run(
            [str(SCRIPT), *map(str, arguments)], env=environment, cwd=tmp_path,
            capture_output=True, text=True,
        )  # fmt: skip

    def asked(self, tmp_path: Path) -> list[list[str]]:
        return [shlex.split(line) for line in (tmp_path / "log").read_text().splitlines()]

    @pytest.mark.parametrize(
        ("fails", "engine"),
        [
            ((), "docker"),
            (("docker info",), "podman"),
            (("docker info", "podman info"), "buildah"),
        ],
    )
    def test_the_first_engine_that_answers_builds(
        self, tmp_path: Path, bundle: Path, fails: tuple[str, ...], engine: str
    ) -> None:
        done = self.run(tmp_path, bundle, fails=fails)
        assert (done.returncode, done.stdout) == (0, "my-model\n"), done.stderr
        *_, build = (tmp_path / "log").read_text().splitlines()
        assert build.startswith(f"{engine} build ") and build.endswith(f" {bundle}")
        assert f"--file {CPU} --tag my-model" in build
        assert ("--timestamp 0" in build) == (engine != "docker")
        assert re.search(r"--label edgecompile.manifest.sha256=[0-9a-f]{64}( |$)", build)

    def test_none_works(self, tmp_path: Path, bundle: Path) -> None:
        fails = ("docker info", "podman info", "buildah info")
        done = self.run(tmp_path, bundle, fails=fails)
        assert done.returncode == 1
        assert "docker, podman or buildah is needed" in done.stderr and "hint: " in done.stderr
        asked = self.run(tmp_path, bundle, "--engine", "podman", fails=("podman info",))
        assert asked.returncode == 1 and "podman is needed" in asked.stderr

    def test_a_base_that_cannot_be_pulled(self, tmp_path: Path, bundle: Path) -> None:
        done = self.run(tmp_path, bundle, fails=("docker image", "docker pull"))
        assert done.returncode == 1
        assert "can't be pulled" in done.stderr and "--base-root DIR" in done.stderr
        assert not (tmp_path / "log").exists()

    def test_a_base_of_one_s_own(self, tmp_path: Path, bundle: Path) -> None:
        done = self.run(
            tmp_path, bundle, "--base", "mine:1", "--tag", "x:2", fails=("docker image",)
        )
        assert (done.returncode, done.stdout) == (0, "x:2\n"), done.stderr
        pull, build = self.asked(tmp_path)
        assert pull == ["docker", "pull", "mine:1"]
        assert build[build.index("--build-arg") + 1] == "BASE=mine:1"

    def test_a_bundle_without_an_engine_for_a_jetson(self, tmp_path: Path, bundle: Path) -> None:
        done = self.run(tmp_path, bundle, "--target", "jetson")
        assert done.returncode == 1 and "(tensorrt)" in done.stderr
        assert not (tmp_path / "log").exists()

    def test_a_jetson_s_image_is_for_arm64(self, tmp_path: Path) -> None:
        bundle = self.make_bundle(tmp_path, tensorrt=True)
        done = self.run(tmp_path, bundle, "--target", "jetson")
        assert (done.returncode, done.stdout) == (0, "my-model-jetson\n"), done.stderr
        *_, build = self.asked(tmp_path)
        assert build[build.index("--platform") + 1] == "linux/arm64"
        assert build[build.index("--file") + 1] == str(JETSON)

    @pytest.mark.parametrize(
        ("least", "below", "fits"), [("10.3", "10.4", True), ("10.16", "11.5", False)]
    )
    def test_the_base_has_to_have_the_recipe_s_tensorrt(
        self, tmp_path: Path, least: str, below: str, fits: bool
    ) -> None:
        bundle = self.make_bundle(tmp_path, tensorrt=True)
        (recipe,) = bundle.rglob("recipe.json")
        recipe.chmod(0o644)
        changed = {**json.loads(recipe.read_text()), "tensorrt": {"least": least, "below": below}}
        recipe.write_text(json.dumps(changed))
        done = self.run(tmp_path, bundle, "--target", "jetson")
        assert (done.returncode == 0) is fits
        assert ("for another TensorRT than the Dockerfile's base" in done.stderr) is not fits
        assert self.run(tmp_path, bundle, "--target", "jetson", "--base", "x:1").returncode == 0

    def test_all_that_is_wrong_with_a_bundle_is_said(self, tmp_path: Path, bundle: Path) -> None:
        (bundle / "runtime" / "edgecompile" / "runtime" / "__main__.py").unlink()
        (bundle / "weights.fp32").chmod(0o600)
        (bundle / "golden").chmod(0o777)
        done = self.run(tmp_path, bundle)
        assert done.returncode == 1
        for part in (
            "__main__.py is missing",
            "may not read",
            "weights.fp32",
            "may write",
            "golden",
        ):
            assert part in done.stderr
        assert not (tmp_path / "log").exists()

    @pytest.mark.parametrize(
        ("arguments", "part"),
        [
            ((), "which bundle"),
            (("b.ecb",), "no bundle b.ecb"),
            (("b.ecb", "c.ecb"), "more than one"),
            (("b.ecb", "--target", "gpu"), "unknown target"),
            (("b.ecb", "--target"), "needs a value"),
            (("b.ecb", "--tga", "x"), "unknown option"),
            (("b.ecb", "--engine", "lxc"), "unknown engine"),
            (("b.ecb", "--suite", "../x"), "isn't a Debian release"),
            (("b.ecb", "--base", "a", "--base-root", "b"), "don't go together"),
            (("b.ecb", "--target", "jetson", "--base-root", "b"), "NVIDIA"),
        ],
    )
    def test_wrong_usage(self, tmp_path: Path, arguments: tuple[str, ...], part: str) -> None:
        done = self.run(tmp_path, *arguments)
        assert done.returncode == 1 and done.stdout == ""
        assert done.stderr.startswith("error: ") and part in done.stderr
        assert not (tmp_path / "log").exists()

    def test_help(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--help")
        assert done.returncode == 0 and done.stdout.startswith("usage: scripts/container")
        for path in DOCKERFILES:
            assert f"docker/{path.name}" in done.stdout
