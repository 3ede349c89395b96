"""The pure heart: what devices are, what pods ask for, what fits where.

No I/O, no framework, no vendor: everything here is data and arithmetic on it, so that scheduler, node daemon,
simulator and tests decide alike. `hamipy.core.vendor` and `hamipy.core.model` are the promise to vendor authors.
"""
