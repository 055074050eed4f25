"""Do all ranks make the same call, and do they live?

agreement.py compares calls, watchdog.py ends a call that cannot complete, runtime.py ends a job well.
Begin with agreement.py. Imports core/ and node/.
"""
