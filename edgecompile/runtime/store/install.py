"""Installs a version: copies, verifies and proves it while the one before serves, then puts it on trial."""

import os
from typing import Callable, Dict, Optional, Tuple

from ..base.errors import BundleError, DamagedBundleError, InputError, StoreError
from ..format.files.folder import BundleFolder
from .cohort import Share, cohort
from .disk import filling, open_folder, remove, rename, sync_folder, sync_tree
from .proof import Prover
from .staging import copy_bundle, list_installed
from .state import STORE_FOLDER, State, Version
from .store import Say, Store
from .unpack import Parcel, unpacked

#: Beginning of the name of a folder that isn't a version yet.
STAGE = ".new"
_HERE = Prover()
Before = Callable[[str, str, Optional[str]], None]


def install(
    source: str,
    root: str = STORE_FOLDER,
    prover: Prover = _HERE,
    say: Say = lambda text: None,
    share: Optional[Share] = None,
    before: Before = lambda model, version, current: None,
) -> Dict[str, object]:
    """Installs a bundle and puts it on trial; ``start`` counts, ``confirm`` ends the trial.

    Running it again after it was killed goes on from what is whole.

    Args:
        source: the bundle: a folder, a tar archive, or ``oci:DIR``, an image layout; see ``unpacked``.
        root: the store.
        prover: the test of the version.
        say: a function that gets a line of text for every step.
        share: the part of all devices that take it; None: all do.
        before: a function that gets the model, the version's id, and that of the current one, before this changes.

    Returns:
        See ``Store.describe``; also "version", its id, "copied", bytes that weren't linked, and "installed", which
        is true. Where the device doesn't belong to the share, and another version is current: "model", "version",
        "cohort", and "installed", which is false.

    Raises:
        InputError: ``share`` is given, and the bundle's release isn't known.
        BundleError: the bundle is malformed or damaged, or its signatures don't suffice.
        RefusedReleaseError, ExpiredReleaseError: its release isn't taken.
        SelftestError: it doesn't reproduce its golden vectors.
        DeviceDiskError: there is too little space.
        StoreError: the store can't be used.
    """
    with unpacked(source, root, say) as parcel:
        folder = parcel.open(prover.trust)
        try:
            store = Store(root, folder.manifest.name)
            declined = None if share is None else _decline(folder, store, share)
            return declined or _install(folder, parcel, store, prover, say, before)
        finally:
            folder.close()


def _decline(folder: BundleFolder, store: Store, share: Share) -> Optional[Dict[str, object]]:
    """The result where this device doesn't belong to those that take the release; None: it does, or runs it."""
    version, model = _describe(folder)[0], folder.manifest.name
    if version.release < 0:
        hint = "sign it with edgecompile sign --release N, and install it with a trust folder"
        raise InputError("{}: has no release to choose devices by".format(folder.path), hint)
    number = cohort(share.device_id, model, version.release)
    if share.takes(number) or store.read().current == version.id:
        return None
    return {"model": model, "version": version.id, "cohort": number, "installed": False}


def _install(
    folder: BundleFolder, parcel: Parcel, store: Store, prover: Prover, say: Say, before: Before
) -> Dict[str, object]:
    store.make()
    version, expires = _describe(folder)
    with store.locked("installing", say):
        state = store.read()
        before(store.model, version.id, state.current)
        copied = 0
        if state.current != version.id:
            state.check(version, expires)
            copied = _bring(folder, store, state, version, prover, say, parcel)
            # Anew: the service may have been started, or the trial confirmed, meanwhile.
            state = store.change(lambda now: _try(now, version, expires))
    done = {"version": version.id, "copied": copied, "installed": True}
    return {**store.describe(state), **done}


def _try(state: State, version: Version, expires: Optional[str]) -> State:
    state.check(version, expires)
    return state.tried(version)


def _describe(folder: BundleFolder) -> Tuple[Version, Optional[str]]:
    """The version that a bundle is, and the time at which it expires where the device heeds that."""
    verified = folder.verified
    release = None if verified is None else verified.release
    if verified is None or release is None:
        return Version(folder.manifest_sha256, -1, 0, ""), None
    expires = release.expires if verified.policy.expires else None
    number, floor, created = release.number, release.floor, release.created
    return Version(folder.manifest_sha256, number, floor, created), expires


def _bring(
    folder: BundleFolder,
    store: Store,
    state: State,
    version: Version,
    prover: Prover,
    say: Say,
    parcel: Parcel,
) -> int:
    """Makes the version's folder, verified and proved; returns the bytes copied, or unpacked for it."""
    place = store.place(version.id)
    copied = 0
    if os.path.lexists(place):
        say("verifying what is there of {}".format(version.id))
        try:
            _verify(place, version, prover, full=True)
        except BundleError:
            if version.id in (state.current, state.previous):
                hint = "sign the bundle again as a release of a higher number, and install that"
                raise StoreError("{}: is damaged [store-version]".format(place), hint) from None
            remove(place)
    if not os.path.lexists(place):
        stage = store.place("{}-{}".format(STAGE, version.id))
        if os.path.lexists(stage):
            remove(stage)
        with open_folder(store.versions) as fd:
            parcel.complete(folder.manifest.files)
            say("copying {} as {}".format(folder.path, version.id))
            installed = list_installed([store.place(name) for name in state.versions])
            # Copying takes about as long as the process of the test needs to start.
            with prover.begin(stage) as test:
                copied = copy_bundle(folder, stage, installed, parcel.own)
                try:
                    _verify(stage, version, prover, full=False)
                    say("testing {}".format(version.id))
                    test(version.sha256)
                    # The disk wrote meanwhile, so this takes little more.
                    with filling(stage):
                        sync_tree(stage, fd)
                except BaseException:
                    remove(stage)
                    raise
        rename(stage, place)
    else:
        say("testing {}".format(version.id))
        prover.prove(place, version.sha256)
    # Also where it was there: whoever brought it may have been killed before the disk had its name.
    sync_folder(store.versions)
    return copied


def _verify(place: str, version: Version, prover: Prover, full: bool) -> None:
    """Checks a folder of the store as a device opens a bundle; ``full`` compares all hashes, too."""
    folder = BundleFolder(place, trust=prover.trust)
    try:
        if _describe(folder)[0] != version:
            raise DamagedBundleError("{}: isn't {} [store-version]".format(place, version.id))
        folder.check_names()
        if full:
            folder.check_hashes()
    finally:
        folder.close()
