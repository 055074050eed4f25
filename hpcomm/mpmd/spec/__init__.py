"""Specs of jobs of several programs: reading, checking, drawing. Begin with spec_file.py."""
