"""What all tests have in common."""

from hypothesis import settings

# The same examples on every machine and rank; a failure prints how to run it again.
settings.register_profile("hpcomm", deadline=None, derandomize=True, print_blob=True, database=None)
settings.load_profile("hpcomm")
