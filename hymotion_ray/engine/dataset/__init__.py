"""Ingest: motion collections become shards of captioned clips. Read pipeline.py first."""
