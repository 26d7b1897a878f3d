"""Training: captioned clips to batches, batches to weights."""
