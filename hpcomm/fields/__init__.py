"""Distributed arrays: partitions, routes, exchanges, halos, redistribution, files. Begin with README.md."""
