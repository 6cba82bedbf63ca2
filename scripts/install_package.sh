#!/usr/bin/env bash
# Installs a Debian package where there is the right to: install_package.sh PACKAGE WHAT-NEEDS-WHAT
set -euo pipefail
package=$1 need=$2

give_up() {
  echo "make: $need, and $1. Install it (for instance" \
    "'sudo apt-get install $package'), then run 'make test' again." >&2
  exit 1
}

command -v apt-get >/dev/null || give_up "this machine has no apt-get to install it with"
if [[ $(id -u) -eq 0 ]]; then
  as_root=()
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
  as_root=(sudo -n)
else
  give_up "installing it takes administrator rights that this account lacks"
fi
echo "make: installing the package $package"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { ${as_root[@]+"${as_root[@]}"} apt-get update -q &&
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive \
    apt-get install -q -y --no-install-recommends "$package"; } >"$log" 2>&1; then
  tail -n 5 "$log" >&2
  give_up "'apt-get install $package' failed (its last lines are above)"
fi
