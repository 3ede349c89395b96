"""hamipy: share the accelerators of a Kubernetes cluster."""

__version__ = "0.1.0"
