#!/bin/sh
# Copy model folders from SOURCE to the node's CACHE once, however many pods of the node ask at once.
# A copy counts as there when it bears a mark; one that was cut short has none and is made again.
# CACHE/NAME is a link to the copy of the source's present state, and changes in one step, so that
# pods that read the one before go on undisturbed.
set -eu
source=${SOURCE:-/source}
cache=${CACHE:-/models}

for folder in "$source"/*/; do
  [ -d "$folder" ] || continue
  name=$(basename "$folder")
  # Names, sizes and times of all files: another import of the model gives another state.
  state=$(cd "$folder" && find . -type f -printf '%p %s %T@\n' | LC_ALL=C sort | sha256sum | cut -c1-16)
  copies=$cache/.copies/$name
  mkdir -p "$copies"
  (
    flock 9
    if [ ! -f "$copies/$state/.complete" ]; then
      echo "copying $name ($state)"
      rm -rf "${copies:?}/$state.part" "${copies:?}/$state"
      cp -R "$folder" "$copies/$state.part"
      touch "$copies/$state.part/.complete"
      mv "$copies/$state.part" "$copies/$state"
    fi
    ln -sfn ".copies/$name/$state" "$cache/.$name.new"
    mv -T "$cache/.$name.new" "$cache/$name"
  ) 9>"$copies/.lock"
done
