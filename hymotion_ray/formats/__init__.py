"""Files in and out: prompts, models, motions, shards. One format a file."""
