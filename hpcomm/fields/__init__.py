"""Arrays spread over ranks: routes, exchanges, halos, redistribution, files.

Begin with field.py and exchange.py; routing.py says who sends what to whom, without MPI.
"""
