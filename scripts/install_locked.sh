#!/usr/bin/env bash
# Installs locks/ into the virtual environment given as $1; a file whose hash is not there is refused.
# torch comes first, in the build that this machine prefers (a CPU build where one is at hand), and
# is checked then: asked for hashes, pip itself would take the registry's build of CUDA.
set -euo pipefail
python=$1/bin/python
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
locked=(install --quiet --no-deps --no-compile --require-hashes)

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
pin=$(awk '/^torch==/ { print $1 }' locks/torch.txt)
pip download --quiet --no-deps --only-binary :all: --dest "$wheels" "$pin"
pip "${locked[@]}" --no-index --find-links "$wheels" -r locks/torch.txt || {
  echo "make: this machine offers a build of $pin that locks/torch.txt does not know;" \
    "where you trust it, 'make lock' adds its hash." >&2
  exit 1
}
if ! "$python" -c 'from importlib.metadata import requires
raise SystemExit(any(name.startswith(("cuda", "nvidia", "triton")) for name in requires("torch")))'; then
  pip "${locked[@]}" -r locks/cuda.txt
fi
pip "${locked[@]}" -r locks/runtime.txt
