"""GPU catalogue, memory estimates, placement and cost: plain Python, no torch, no ray."""
