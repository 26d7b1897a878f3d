"""Bulk rendering: prompt files become motion files. Read pipeline.py first."""
