"""The check of a cluster: every node, every pair of nodes, and what to do about what is wrong."""
