"""Fields in files. Begin with npy.py; file_folder.py has what all formats share."""
