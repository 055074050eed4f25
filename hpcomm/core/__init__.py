"""What one communication is, in words: element types, operators, buffers, signatures, requests.

Imports numpy at most: no MPI, no threads. Begin with operation.py (a Call) and buffer.py
(an array, looked at once).
"""
