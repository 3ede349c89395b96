"""Public helpers for tests, demos and vendor authors: pretend parts of a cluster that behave like the real ones.

`apiserver` is an API server in memory, `kubelet` a kubelet on a unix socket, `conformance` the suite that every vendor
has to pass. The package may be imported by anybody's tests; nothing of hamipy's production code imports it.
"""
