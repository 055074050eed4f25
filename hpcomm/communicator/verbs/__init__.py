"""The public operations, as base classes of Communicator. Begin with collectives.py."""
