"""A device with a store, and signed bundles that run: versions of one model of toy libraries."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from edgecompile.runtime.base.errors import StoreError
from edgecompile.runtime.format.files.folder import BundleFolder
from edgecompile.runtime.store import store as commands
from edgecompile.runtime.store.install import install
from edgecompile.runtime.store.proof import Prover
from edgecompile.runtime.store.store import Store
from tests.hostile.toy import (
    PROGRAMS,
    build_answering,
    build_libraries,
    find_compiler,
    make_toy_bundle,
)
from tests.runtime.bundles import LENGTHS, DummyBundle, make_case
from tests.runtime.golden_files import write_case
from tests.runtime.signed import RELEASE, SignedBundle

MODEL = "tiny"


def pack(folder: Path, target: Path, mode: str = "w", top: str = "", **more: Any) -> Path:
    """A tar archive of a bundle."""
    with tarfile.open(target, mode, **more) as tar:  # type: ignore[call-overload]
        tar.add(folder, top or ".")
    return target


class Device:
    """A store at ``root``, a trust folder, and the keys to sign with."""

    def __init__(self, place: Path) -> None:
        if find_compiler() is None:
            pytest.skip("needs a C compiler")
        place.mkdir(exist_ok=True)
        self.place = place
        self.signed = SignedBundle(place)
        self.root = place / "store"
        self.prover = Prover(trust=str(self.signed.trust))

    @property
    def store(self) -> Store:
        return Store(str(self.root), MODEL)

    def release(self, number: int, floor: int = 0, **more: Any) -> Path:
        """A signed bundle of a release.

        ``answer`` is what its outputs hold; ``good=False`` gives it golden vectors that it doesn't reproduce.
        """
        path = self.place / f"{number}.ecb"
        shutil.rmtree(path, ignore_errors=True)
        bundle = make_toy_bundle(path, build_libraries())
        bundle.files["reports/plan.json"] = f'{{"of": {number}}}'.encode()
        answer = more.pop("answer", 0)
        if answer:
            bundle.files.update({name: build_answering(answer) for name in PROGRAMS})
        wrong = not more.pop("good", True)
        for bucket, length in LENGTHS.items():
            inputs, outputs = make_case(length)
            outputs = {name: array + answer + wrong for name, array in outputs.items()}
            bundle.files[f"golden/{bucket}-hint.npz"] = write_case(inputs, outputs)
        self.sign(bundle, number=number, floor=floor, **more)
        return path

    def sign(self, bundle: DummyBundle, **release: Any) -> None:
        """Writes and signs a bundle."""
        bundle.write()
        self.signed.path = bundle.folder
        self.signed.write_release({**RELEASE, "floor": 0, "expires": None, **release})
        self.signed.sign()

    def install(self, path: Path | str) -> dict[str, Any]:
        return install(str(path), str(self.root), self.prover)

    def start(self) -> str:
        """Starts the service; returns the path that it opens."""
        return str(commands.start(self.store)["path"])

    def run(self, path: Path) -> None:
        """Installs a release, starts it and finds it good."""
        self.install(path)
        self.start()
        commands.confirm(self.store)

    def number(self, path: str | Path) -> int:
        """The number of the release that is at ``path``, whole and verified."""
        folder = BundleFolder(os.path.realpath(path), trust=str(self.signed.trust))
        try:
            folder.check_hashes()
            assert folder.verified is not None and folder.verified.release is not None
            return folder.verified.release.number
        finally:
            folder.close()

    def served(self, root: Path) -> set[int]:
        """The releases that a disk serves, by its link and after ``start``; none before the first installation."""
        store = Store(str(root), MODEL)
        link = os.path.join(store.path, "current")
        found = {self.number(link)} if os.path.lexists(link) else set()
        try:
            found.add(self.number(str(commands.start(store)["path"])))
        except StoreError:
            assert not found and not os.path.lexists(os.path.join(store.path, "state.json"))
        return found
