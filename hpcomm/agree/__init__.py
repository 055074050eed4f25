"""Do all ranks make the same call, and do they live? Begin with README.md, then agreement.py."""
