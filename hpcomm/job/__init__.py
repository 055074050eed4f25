"""The life of a rank and of its job: launching, supervising, ending.

Begin with launch.py (`hpcomm run`) or process_role.py (what this process is). Imports errors only.
"""
