"""Prompt -> condition: what the network is told of a text.

`condition.py` says what a condition is, `encoder.py` what an encoder promises; `qwen_clip.py` is
the released models' encoder, `static.py` the small one of the built-in model, `load.py` picks.
`store.py` keeps features on disk, `rewrite.py` asks a language model to reword prompts first.
Importing this room loads no transformers; it never imports ray.
"""
