#!/usr/bin/env bash
# Makes sure that there is a PostgreSQL for the storage tests to start; installs it where there is
# the right to. The tests start their own server; one that the package starts is left alone.
set -euo pipefail

found() {
  command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null
}

found || bash "$(dirname "$0")/install_package.sh" postgresql "the storage tests need PostgreSQL"
found || { echo "make: the package postgresql left no initdb in /usr/lib/postgresql." >&2; exit 1; }
