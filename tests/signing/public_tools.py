"""Signs or checks a bundle by tools of others; runs in an environment of their own (EDGECOMPILE_SIGNING_PYTHON).

public_tools.py check BUNDLE SIGNATURE PUBLIC_KEY
public_tools.py sign BUNDLE SIGNATURE PRIVATE_KEY
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from model_signing import hashing, signing, verifying
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey


def check(bundle: str, signature: str, key: str) -> None:
    """As a storage initializer would, and then the envelope alone."""
    verifying.Config().use_elliptic_key_verifier(public_key=key).verify(bundle, signature)
    document = json.loads(Path(signature).read_text())["dsseEnvelope"]
    pem = Path(key).read_text()
    scheme = {178: "nistp256", 215: "nistp384", 268: "nistp521"}[len(pem)]
    public = SSlibKey("", "ecdsa", f"ecdsa-sha2-{scheme}", {"public": pem})
    envelope = Envelope.from_dict(document)
    assert envelope.payload == base64.b64decode(document["payload"])
    assert list(envelope.verify([public], 1)) == [""]


def sign(bundle: str, signature: str, key: str) -> None:
    """Other signatures are left out, as the tool's users do."""
    config = hashing.Config().set_ignored_paths(
        paths=[f"{bundle}/signatures"], ignore_git_paths=True
    )
    Path(signature).parent.mkdir(exist_ok=True)
    signer = signing.Config().use_elliptic_key_signer(private_key=key)
    signer.set_hashing_config(config).sign(bundle, signature)


{"check": check, "sign": sign}[sys.argv[1]](*sys.argv[2:])
