"""Several programs in one job: they meet by name, start from a spec, and exchange fields."""
