"""The network's sampling path as fused GPU kernels (Triton). Imported only where they can run."""
