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

found || bash "$(dirname "$0")/install_package.sh" chromium "the page tests need Chromium"
found || { echo "make: the package chromium left no Chromium on PATH." >&2; exit 1; }
