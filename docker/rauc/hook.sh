#!/bin/sh
# RAUC's slot hook (manifest.raucm): the store takes the archive, or RAUC's installation fails with its reason.
set -eu
[ "$1" = slot-install ]
exec /opt/edgecompile/bin/python -m edgecompile.runtime install "$RAUC_IMAGE_NAME" --user edge
