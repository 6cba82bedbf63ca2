#!/usr/bin/env bash
# Makes sure that a Chromium for the page tests is on PATH; installs it where there is the right to.
set -euo pipefail

found() {
  local name
  for name in chromium chromium-browser google-chrome google-chrome-stable; do
    command -v "$name" >/dev/null && return 0
  done
  return 1
}

give_up() {
  echo "make: the page tests need Chromium, and $1. Install it (for instance" \
    "'sudo apt-get install chromium'), then run 'make test' again." >&2
  exit 1
}

found && exit 0
command -v apt-get >/dev/null || give_up "this machine has no apt-get to install it with"
if [[ $(id -u) -eq 0 ]]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo -n)
else
  give_up "installing it takes administrator rights that this account lacks"
fi
echo "make: installing Chromium for the page tests"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { ${as_root[@]+"${as_root[@]}"} apt-get update -q &&
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends chromium; } >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  give_up "'apt-get install chromium' failed (its last lines are above)"
fi
found || give_up "'apt-get install chromium' left none on PATH"
