"""Motion collections become shards."""
