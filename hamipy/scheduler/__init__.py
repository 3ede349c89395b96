"""The scheduler role: webhook, kube-scheduler extender, published names and what keeps them right."""
