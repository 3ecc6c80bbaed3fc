"""Another user, who opens what root wrote."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

OTHER_USER = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


def admit_other_user(folder: Path, run: Path) -> None:
    """Lets every user into the folders of a test run above a folder; skips where none can be another user.

    Args:
        folder: a folder of the run.
        run: the run's own folder, which may lie in those that pytest makes.
    """
    if os.geteuid() != 0 or shutil.which(OTHER_USER[0]) is None:
        pytest.skip("only root can become another user")
    for above in folder.parents:
        own = run in (above, *above.parents) or "pytest" in str(above)
        if own and above.stat().st_mode & 0o5 != 0o5:
            above.chmod(0o755)
