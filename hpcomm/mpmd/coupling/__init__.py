"""Coupled fields: what programs send each other, and when. Begin with coupler.py."""
