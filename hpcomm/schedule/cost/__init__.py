"""What a schedule costs on a machine: LogGP with ports and shared links, up to 100,000 ranks.

Begin with simulate.py; machine.py has the machines, max_plus_time.py the algebra.
"""
