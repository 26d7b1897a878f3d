"""The only room that imports ray: clusters, bulk rendering, datasets, training, serving."""
