"""Collective algorithms as pure functions: proof, price, picture and deed all read the same rows."""
