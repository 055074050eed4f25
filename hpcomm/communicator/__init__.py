"""The Communicator and its operations, which users call. Begin with README.md, then collectives.py."""
