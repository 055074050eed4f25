"""How communicators are made of one another, and how they end. Begin with groups.py."""
