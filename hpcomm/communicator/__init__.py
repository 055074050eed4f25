"""The Communicator and its operations, which users call.

Begin with communicator.py and collectives.py. fastpath*.py are the short ways of frequent calls; payload*.py
and pickling.py carry objects and ragged arrays.
"""
