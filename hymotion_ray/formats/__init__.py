"""Everything that lies on disk, one file a form. Knows motions and configs; no sampling, no Ray.

models/     model folders: the released form, our own, and a hub's
prompts/    prompt files: text lines, JSON, CSV, Parquet
motions/    motion files: npz, BVH, GLB, FBX, USD, by suffix
sources/    other people's motion collections, for `ingest`
figures/    what is drawn: a mannequin or a body mesh, posed, lit and captioned

shards, shard_table, shard_order    clips to train on
html, video, preview                pages, films and picture strips of motions
ingest_report, svg_plots            the page that an ingest writes
atomic, locations, streams          reading and writing on disks and object stores
local_file, torch_file, names       checks of local files, torch's files without code, safe names
"""
