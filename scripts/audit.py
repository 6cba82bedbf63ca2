"""Looks up every locked package in the database of known weaknesses; `make audit` runs it."""

import json
import subprocess
import sys
from pathlib import Path

LOCKS = sorted((Path(__file__).resolve().parents[1] / "locks").glob("*.txt"))
UNREACHABLE = 3


def main() -> int:
    """0 if none is known, 1 if one is, 3 if packages could not be looked up."""
    files = [f"--requirement={file}" for file in LOCKS]
    found = subprocess.run(  # noqa: S603
        [
            *(sys.executable, "-m", "pip_audit", *files, "--require-hashes", "--disable-pip"),
            *("--format=json", "--progress-spinner=off"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        packages = json.loads(found.stdout)["dependencies"]
    except (ValueError, KeyError):
        packages = []
    missed = [each["name"] for each in packages if "skip_reason" in each]
    known = [
        f"{each['name']} {each['version']}: {flaw['id']}, mended in "
        f"{', '.join(flaw['fix_versions']) or 'no version yet'}"
        for each in packages
        for flaw in each.get("vulns", ())
    ]
    sys.stdout.write("".join(f"{line}\n" for line in known))
    if missed or not packages:
        sys.stderr.write(
            f"audit: {len(packages) - len(missed)} of {len(packages) or 'all'} packages were "
            "looked up; the database of known weaknesses is out of reach from here, so this says "
            "nothing about the others.\n"
        )
    else:
        sys.stdout.write(f"audit: {len(packages)} packages, {len(known)} known weaknesses.\n")
    return 1 if known else UNREACHABLE if missed or not packages else 0


if __name__ == "__main__":
    sys.exit(main())
