"""One module for each state that has work to do, and one for those at rest.

``decide(job, run, fleet, now)`` gives what is to be written, and does nothing.
"""
