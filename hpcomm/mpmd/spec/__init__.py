"""The spec of a job of several programs: reading, checking, drawing. Begin with spec_file.py."""
