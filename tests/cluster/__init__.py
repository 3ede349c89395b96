"""A real Kubernetes cluster on one Linux machine, for tests, benchmarks and people.

Real etcd, kube-apiserver, kube-controller-manager and kube-scheduler on the host; any number of real nodes (kubelet,
containerd, runc), each in mount, pid, net and uts namespaces of its own. No container registry is used: binaries
come from the Go module proxy (`binaries`), images are made here (`images`).

`python -m tests.cluster up|down|status|exec` for people, `Cluster` for pytest fixtures and benchmarks.
There is one cluster per machine at a time, for it serves on 10.96.0.1:443.
"""
