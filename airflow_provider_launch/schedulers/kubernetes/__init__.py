"""Apps as Indexed Jobs of a Kubernetes cluster."""
