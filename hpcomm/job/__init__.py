"""Life of a rank and of its job: launching, supervising, ending. Begin with README.md, then launch.py."""
