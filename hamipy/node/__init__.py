"""The node role: finds devices, publishes them, hands them to containers through the kubelet, and cleans up."""
