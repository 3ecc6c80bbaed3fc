"""What the options of a server become, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgecompile.runtime.base.errors import InputError
from edgecompile.server.process.arguments import parse


def test_names_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("m.ecb", "a=b/m.ecb", "c/d=e"):
        Path(folder).mkdir(parents=True)
    for item, name, path in (
        ("m.ecb", None, "m.ecb"),
        ("x=m.ecb", "x", "m.ecb"),
        ("org/x=m.ecb", "org/x", "m.ecb"),
        (f"a/b/c={tmp_path}/m.ecb", "a/b/c", f"{tmp_path}/m.ecb"),
        ("x=a=b/m.ecb", "x", "a=b/m.ecb"),
        ("a=b/m.ecb", None, "a=b/m.ecb"),
        ("./c/d=e", None, "./c/d=e"),
        (f"{tmp_path}/c/d=e", None, f"{tmp_path}/c/d=e"),
    ):
        assert parse([item]).bundles == ((name, path),)
    for item in ("a//b=m.ecb", "a/=m.ecb", "a\n=m.ecb"):
        with pytest.raises(InputError, match="can't be a model's name"):
            parse([item])


def test_origins(tmp_path: Path) -> None:
    good = [
        "*",
        "https://a.example",
        "http://localhost:3000",
        "chrome-extension://abc",
        "http://[::1]:8",
    ]
    words = [word for origin in good for word in ("--cors-origin", origin)]
    assert parse([*words, str(tmp_path)]).settings.cors_origins == tuple(good)
    for bad in (
        "a.example",
        "https://a.example/",
        "https://a.example/x",
        "",
        "null",
        "https://*.a",
        "http://a b",
    ):
        with pytest.raises(InputError, match=r"--cors-origin is .*, must be \* or SCHEME://HOST"):
            parse(["--cors-origin", bad, str(tmp_path)])


def test_lookup_is_asked_for(tmp_path: Path) -> None:
    assert parse(["--lookup", str(tmp_path)]).settings.lookup
    assert not parse([str(tmp_path)]).settings.lookup
