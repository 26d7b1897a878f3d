#!/usr/bin/env bash
# Known holes in the packages of the images, and a bill of materials for each. Needs the network: it
# asks the public advisory database. `make audit` runs it; put it into the pipeline that releases.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install -qq pip-audit cyclonedx-bom

mkdir -p "${OUT:-../dist}"
failed=0
for build in cpu cuda; do
  cat requirements.lock "requirements-$build.lock" > "$folder/$build.txt"
  "$folder/venv/bin/cyclonedx-py" requirements "$folder/$build.txt" --of JSON \
    --output-file "${OUT:-../dist}/sbom-$build.cdx.json"
  # By name and version as locked; nothing is installed or resolved. The advisories know torch
  # without its build tag. Strict: a package that could not be asked about is a failure, not a pass.
  sed 's/^\(torch==[^+ ]*\)+cpu/\1/' "$folder/$build.txt" > "$folder/audit.txt"
  "$folder/venv/bin/pip-audit" --requirement "$folder/audit.txt" --no-deps --disable-pip --strict \
    || failed=1
done
exit "$failed"
