"""Evaluation: what motions, a dataset or a model are worth, in numbers whose sources are named."""
