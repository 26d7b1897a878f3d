"""The HTTP endpoint on Ray Serve."""
