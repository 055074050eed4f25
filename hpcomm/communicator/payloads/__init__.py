"""Objects and ragged arrays, whose receivers know neither type nor size. Begin with payload.py."""
