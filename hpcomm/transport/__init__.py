"""How a Call is carried out: by the MPI library, by schedules, between devices. Begin with README.md."""
