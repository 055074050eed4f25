"""Devices: one seam to a driver, CUDA's own and a model of it, and the look at arrays that live there."""
