"""The one error of the harness."""


class HarnessError(Exception):
    """The machine cannot carry the cluster, or a part of it did not come up; one sentence for a person."""
