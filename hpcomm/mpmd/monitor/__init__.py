"""Monitors of jobs of several programs. Begin with job_monitor.py."""
