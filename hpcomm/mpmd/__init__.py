"""Several programs in one job: handshake, specs, coupled fields, monitors. Begin with README.md."""
