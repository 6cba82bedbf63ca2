#!/usr/bin/env bash
# Creates the virtual environment given as $1 with the first Python 3.11 or newer on this machine.
# PYTHON=/path/to/python overrides the search.
set -euo pipefail
venv=$1

new_enough() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3 python; do
  if command -v "$candidate" >/dev/null && new_enough "$candidate"; then
    python=$candidate
    break
  fi
done
if [[ -z ${python:-} ]]; then
  echo "make: no Python 3.11 or newer was found. Install one (for instance" \
    "'apt-get install python3.11 python3.11-venv'), or call make with PYTHON=/path/to/python." >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  echo "make: $("$python" --version) has no venv module. Install it (on Debian and Ubuntu" \
    "'apt-get install python3-venv'), then try again." >&2
  exit 1
fi
echo "make: creating $venv with $("$python" --version)"
"$python" -m venv "$venv"
# The one that Python brings is as old as Python, and has weaknesses that are known.
"$venv/bin/python" -m pip --disable-pip-version-check install --quiet --upgrade pip==26.3
